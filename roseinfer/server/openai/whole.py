"""Answers in one JSON body."""

from __future__ import annotations

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished
from roseinfer.server.http.errors import HttpError, Response
from roseinfer.server.openai.choice import Answer
from roseinfer.server.openai.completion import Reply
from roseinfer.server.openai.responses import Choice


class WholeReply(Reply):
    """Responds when the last answer has ended."""

    def _receiver(self, index: int, answer: Answer) -> WholeAnswer:
        if index == 0:
            self._choices: list[Choice] = []
        receiver = WholeAnswer(self, index, answer, self._request.return_token_ids)
        self._choices.append(receiver.choice)
        return receiver

    def ended(self, choice: Choice, end: Finished | None) -> None:
        """A choice is complete."""
        self.note(choice, end)
        if self._open == 1:
            self._connection.respond(Response(200, self._shape.whole(self._choices, self.usage())))
        self._open -= 1

    def fail(self, error: HttpError) -> None:
        """Respond with `error`."""
        if not self._open:
            return
        self._open = 0
        self.close()
        self._connection.respond(error.response())


class WholeAnswer:
    """Collects one answer."""

    def __init__(self, reply: WholeReply, index: int, answer: Answer, keep_ids: bool) -> None:
        self._reply, self._index, self._answer = reply, index, answer
        self._texts: list[str] = []
        self._ids: list[int] | None = [] if keep_ids else None
        self.choice = Choice(index, "", None, None)

    def begin(self, begun: Finished) -> None:
        self._answer.begin(begun)

    def tell(self, logprobs: TokenLogprobs) -> None:
        self._answer.tell(logprobs)

    def push(self, token: int, end: Finished | None) -> None:
        text, reason = self._answer.extend(token, end)
        self._texts.append(text)
        if self._ids is not None:
            self._ids.append(token)
        if reason is not None:
            if end is None:
                end = self._reply.stop(self._index)
            self.choice.text, self.choice.finish_reason = "".join(self._texts), reason
            self.choice.logprobs = self._answer.take_logprobs()
            if self._ids is not None:
                self.choice.token_ids = self._ids
            self._reply.ended(self.choice, end)

    def fail(self, error: HttpError) -> None:
        self._reply.fail(error)

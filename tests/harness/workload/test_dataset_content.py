"""Requests of datasets: of conversations, and of agents' jobs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from harness.datasets.agents import AgentJobs, read_agent_jobs
from harness.datasets.dataset import Conversation, Dataset, Turn
from harness.errors import UsageError
from harness.loadgen.live_answers import answer_marker
from harness.models.model_folder import resolve
from harness.traces.fit import RESERVED_TOKENS
from harness.workload.dataset_content import NONCE_WORDS, AgentContent, DatasetContent

TEXTS = st.text("ab c", min_size=1, max_size=40).filter(str.strip)
TURNS = st.lists(st.builds(Turn, TEXTS, st.none() | TEXTS, st.floats(0, 9)), min_size=1, max_size=4)
CONVERSATIONS = st.lists(st.builds(Conversation, TURNS.map(tuple)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resolve("random:gpt2-tiny").path / "tokenizer.json"))


def content(conversations: list[Conversation], tokenizer: Tokenizer | None, **fields) -> DatasetContent:
    data = Dataset("d", tuple(conversations), "", "")
    fields = {"context": 512, "exact": True, "max_output": 32, "same": True} | fields
    return DatasetContent(data, tokenizer, **fields)


@given(conversations=CONVERSATIONS, n=st.integers(1, 15), seed=st.integers(0, 2**64 - 1))
def test_prompts_are_those_of_the_dataset_in_an_order_of_the_seed(tokenizer, conversations, n, seed):
    made = content(conversations, tokenizer)
    requests, same = made.take(n, 1, seed), made.take(n, 2, seed)
    assert [r.text for r in requests] == [r.text for r in same] and len(requests) == n
    questions = [conversation.turns[0].question for conversation in conversations]
    rounds = [requests[i : i + len(questions)] for i in range(0, n, len(questions))]
    for whole in rounds[:-1]:
        assert sorted(r.text for r in whole) == sorted(questions)  # each once before any comes again
    for request in requests:
        assert tokenizer.encode(request.text).ids == request.prompt.tolist()
        assert (request.after, request.think_s, request.session) == ((), None, None)
    later = made.take(n, 1, seed, first=2)
    assert [r.text for r in later] == [r.text for r in made.take(n + 2, 1, seed)][2:]


@given(conversations=CONVERSATIONS, n=st.integers(1, 12), turns=st.sampled_from([None, "live", "recorded"]))
def test_each_load_has_words_of_its_own_before_its_conversations(tokenizer, conversations, n, turns):
    plain, made = (content(conversations, tokenizer, turns=turns, same=same) for same in (True, False))
    sent, again, other = plain.take(n, 1, 5), made.take(n, 1, 5), made.take(n, 2, 5)
    assert [r.text for r in again] == [r.text for r in made.take(n, 1, 5)]
    begins = []
    for request, begun, elsewhere in zip(sent, again, other, strict=True):
        (first, *later), (first_begun, *later_begun) = request.messages, begun.messages
        words = first_begun["content"].removesuffix(first["content"])
        assert later == later_begun and words.endswith(".\n\n") and len(words.split()) == NONCE_WORDS
        assert not elsewhere.messages[0]["content"].startswith(words)
        begins.append(words)
        if len(begun.prompt):
            assert tokenizer.encode(begun.text).ids == begun.prompt.tolist()
        if begun.turn:
            assert begins[begun.index - 1] == words  # a cache has the turns before
    assert made.prompts is None


def test_conversations_that_begin_alike_share_as_much_as_before(tokenizer):
    talks = [Conversation((Turn(q, "yes", 0.0),), system="You are a careful assistant. " * 4) for q in "abc"]
    texts = [r.text for r in content(talks, tokenizer, same=False).take(6, 1, 5)]
    assert len({text[:120] for text in texts[:3]}) == 1
    assert not {text[:40] for text in texts[:3]} & {text[:40] for text in texts[3:]}  # the dataset again


@given(conversations=CONVERSATIONS, n=st.integers(1, 8), live=st.booleans())
def test_turns_follow_each_other_with_the_answers_before_them(tokenizer, conversations, n, live):
    made = content(conversations, tokenizer, turns="live" if live else "recorded")
    requests = made.take(n, 0, 5)
    assert [r.index for r in requests] == list(range(len(requests)))
    assert len({r.session for r in requests}) == n
    for request in requests:
        if request.turn == 0:
            assert (request.after, request.think_s, request.answers) == ((), None, ())
            continue
        before = requests[request.index - 1]
        assert (before.session, before.turn) == (request.session, request.turn - 1)
        assert request.after == (before.index,) and request.think_s is not None
        given_answers = [m["content"] for m in request.messages if m["role"] == "assistant"]
        if live:
            first = request.index - request.turn
            assert request.answers == tuple(range(first, request.index)) and len(request.prompt) == 0
            assert given_answers == [answer_marker(index) for index in request.answers]
        else:
            assert len(given_answers) == request.turn and all(given_answers)
            assert tokenizer.encode(request.text).ids == request.prompt.tolist()


@given(conversations=CONVERSATIONS, context=st.integers(RESERVED_TOKENS + 2, 80), live=st.booleans())
def test_nothing_exceeds_the_context(tokenizer, conversations, context, live):
    made = content(conversations, tokenizer, context=context, turns="live" if live else "recorded")
    try:
        requests = made.take(8, 0, 0)
    except UsageError as error:
        assert "fits a context" in error.message
        return
    spent: dict[int | None, int] = {}
    for request in requests:
        length = len(request.prompt)
        if request.answers:  # the rest of the text, and the longest answers that there can be
            rest = "".join(part for part in request.text.split("\x01") if not part.startswith("answer "))
            length = len(tokenizer.encode(rest).ids) + spent[request.session]
        assert 0 < length + request.output_tokens <= context - RESERVED_TOKENS
        spent[request.session] = spent.get(request.session, 0) + request.output_tokens


def test_recorded_answers_take_no_room_where_the_own_ones_do(tokenizer):
    talk = [Conversation(tuple(Turn("a question", "word " * 800, 0.0) for _ in range(3)))]
    sent = {
        turns: content(talk, tokenizer, exact=False, turns=turns).take(1, 0, 0)
        for turns in ("live", "recorded")
    }
    assert (len(sent["live"]), len(sent["recorded"])) == (3, 1)


def test_what_does_not_fit_is_counted(tokenizer):
    talk = [Conversation((Turn("word " * count, "yes"),)) for count in (10, 20, 300, 400)]
    made = content(talk, tokenizer, context=128)
    assert len(made.take(6, 0, 0)) == 6
    assert made.dropped == 2


def test_prompts_are_counted_until_they_come_again(tokenizer):
    """Of sessions only conversations of several turns; what was found not to fit does not count."""
    short, long = (Turn("q w e r " * n, "b", 0.0) for n in (2, 200))
    conversations = [Conversation((short,)), Conversation((short, short)), Conversation((long, short))]
    firsts = content(conversations, tokenizer, context=128)
    assert firsts.prompts == 3
    taken = firsts.take(4, 0, 7)
    assert firsts.prompts == 2 and len({id(r.messages) for r in taken}) == 2
    assert content(conversations, tokenizer, turns="recorded").prompts == 2


def test_answers_are_as_long_as_the_recorded_ones_or_end_by_themselves(tokenizer):
    talk = [Conversation((Turn("a question", "one two three"),)), Conversation((Turn("another"),))]
    exact = {r.text: r.output_tokens for r in content(talk, tokenizer).take(2, 0, 0)}
    assert exact == {"a question": len(tokenizer.encode("one two three").ids), "another": 32}
    free = content(talk, tokenizer, exact=False, max_output=9).take(2, 0, 0)
    assert {r.output_tokens for r in free} == {9}


def test_without_a_tokenizer_there_is_text_alone():
    [request] = content([Conversation((Turn("what is it?", "a long answer"),))], None).take(1, 0, 0)
    assert (request.text, len(request.prompt), request.output_tokens) == ("what is it?", 0, 4)


def test_warm_up_is_as_long_as_the_prompts(tokenizer):
    talk = [Conversation((Turn("word " * count),)) for count in (10, 20, 30, 40)]
    lengths = content(talk, tokenizer).input_lengths(4)
    assert lengths == sorted(lengths) and np.ptp(lengths) >= 25


def test_the_report_says_how_many_entries_were_left_out():
    talks = (Conversation((Turn("a"),)),)
    whole = DatasetContent(Dataset("d", talks, "", "", note="n", skipped=1200), None, 512, True, 32)
    assert whole.about["note"] == "n; 1,200 entries without a question of text left out"
    assert DatasetContent(Dataset("d", talks, "", ""), None, 512, True, 32).about["note"] is None


def test_an_answer_has_no_token_that_begins_a_sequence(tokenizer):
    first = Tokenizer.from_str(tokenizer.to_str())
    begin = "<|endoftext|>"
    first.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, 0)])
    talk = [Conversation((Turn("a b", "a b c"),))]
    [with_it], [without] = (content(talk, known).take(1, 0, 0) for known in (first, tokenizer))
    assert len(with_it.prompt) == len(without.prompt) + 1
    assert with_it.output_tokens == without.output_tokens


BLOCK = 4


def job(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "block_size": BLOCK, "hash_id_scope": "local", "requests": list(requests)}


def asked(t: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": 3, "hash_ids": ids, "stop": ""} | more


ONE = job(
    asked(0, 9, [1, 2], api_time=2.0, think_time=0.0),
    asked(3, 17, [1, 2, 3, 4], api_time=1.0, think_time=0.5),
    asked(9, 17, [1, 2, 3, 5]),
)
OTHER = job(asked(0, 8, [1, 2]), asked(7, 30, [1, 2, 6]))


def read(folder: Path, *jobs: dict[str, Any]) -> AgentJobs:
    for number, job in enumerate(jobs):
        (folder / f"trace_{number}.json").write_text(json.dumps(job))
    return read_agent_jobs(f"weka:{folder}")


def test_files_and_lines_are_read_alike(tmp_path: Path) -> None:
    found = read(tmp_path, ONE, OTHER)
    assert [len(turns) for turns in found.jobs] == [3, 2]
    assert [turn.think_s for turn in found.jobs[0]] == [0.0, 0.5, 5.0]  # 9 s - 3 s - 1 s of the answer
    assert [turn.think_s for turn in found.jobs[1]] == [0.0, 7.0]
    lines = tmp_path / "lines" / "all.jsonl"
    lines.parent.mkdir()
    lines.write_text(f"{json.dumps(ONE)}\n\n{json.dumps(OTHER)}\n")
    assert read_agent_jobs(f"weka:{lines}").jobs == found.jobs


def test_a_subagent_is_waited_for_if_it_had_ended(tmp_path: Path) -> None:
    """Two subagents after the first answer, of which the second goes on beside the main agent."""
    inner = [asked(0.0, 4, [9], api_time=1.0), asked(1.5, 8, [9, 8], api_time=1.0, think_time=0.25)]
    of_main = {"type": "subagent", "agent_id": "a", "subagent_type": "x"}
    [turns] = read(
        tmp_path,
        job(
            asked(0, 9, [1, 2], api_time=2.0),
            of_main | {"t": 3, "duration_ms": 3000, "requests": inner},
            of_main | {"t": 3, "duration_ms": 9000, "requests": [asked(3.5, 4, [7], api_time=8.0)]},
            asked(7, 17, [1, 2, 3], api_time=1.0, think_time=9.0),
            asked(13, 21, [1, 2, 3], think_time=0.5),
        ),
    ).jobs
    assert [turn.after for turn in turns] == [(), (0,), (1,), (0,), (0, 2), (4, 3)]
    # from the ends 2, 4, 5.5, 11.5 and 8 s to 3, 4.5, 3.5, 7 and 13 s; the record of the second says 0.25 s
    assert [turn.think_s for turn in turns] == [0.0, 1.0, 0.25, 1.5, 1.5, 1.5]
    requests = AgentContent(read(tmp_path, ONE), 1000, 100).take(2, 1, 2)
    assert all(need < request.index for request in requests for need in request.after)


def test_what_is_no_job_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no job of an agent"):
        read_agent_jobs(f"weka:{tmp_path}")
    with pytest.raises(UsageError, match=r"line 1: .*missing required field `requests`"):
        read(tmp_path, {"id": "x"})
    with pytest.raises(UsageError, match="blocks of several sizes"):
        read(tmp_path, ONE, OTHER | {"block_size": 8})


def test_prompts_share_the_blocks_of_their_job(tmp_path: Path) -> None:
    made = AgentContent(read(tmp_path, ONE, OTHER), 1000, 100)
    requests = made.take(4, 1, 2)
    by_session: dict[int, list[Any]] = {}
    for request in requests:
        by_session.setdefault(request.session, []).append(request)
    assert sorted(map(len, by_session.values())) == [2, 2, 3, 3]  # each job twice
    firsts = [turns[0].prompt[:BLOCK].tolist() for turns in by_session.values()]
    assert len({tuple(first) for first in firsts}) == 4  # local ids, and other tokens when a job comes again
    for turns in by_session.values():
        for before, after in itertools.pairwise(turns):
            np.testing.assert_array_equal(before.prompt[: 2 * BLOCK], after.prompt[: 2 * BLOCK])
            assert after.after == (before.index,) and after.think_s is not None
    [three] = [turns for turns in list(by_session.values())[:2] if len(turns) == 3]
    assert three[1].prompt[8:12].tolist() == three[2].prompt[8:12].tolist()
    assert three[1].prompt[12:16].tolist() != three[2].prompt[12:16].tolist()
    inputs, outputs = made.lengths(4, 2)
    assert inputs.tolist() == [len(request.prompt) for request in requests] and set(outputs) == {3}


def test_equal_ids_of_a_global_scope_are_equal_blocks(tmp_path: Path) -> None:
    jobs = [given | {"hash_id_scope": "global"} for given in (ONE, OTHER)]
    requests = AgentContent(read(tmp_path, *jobs), 1000, 100).take(2, 1, 2)
    assert len({tuple(request.prompt[:BLOCK]) for request in requests}) == 1


def test_a_job_ends_before_the_turn_that_does_not_fit(tmp_path: Path) -> None:
    made = AgentContent(read(tmp_path, ONE, OTHER), 1000, 9 + 20)  # 9 tokens are left free
    assert sorted(request.turn for request in made.take(2, 0, 0)) == [0, 0, 1, 2]
    assert made.dropped == 1
    with pytest.raises(UsageError, match=r"no job of .* fits a context of 15 tokens"):
        AgentContent(read(tmp_path, ONE, OTHER), 1000, 15).take(1, 0, 0)

"""The columns of `requests.parquet` and `chunks.parquet`, from which every figure can be computed again, and
of `server.parquet`: what servers say of themselves meanwhile.

All times are seconds since the cell's own start (`t = 0` is the first scheduled arrival of the cell, or its
first request in a closed loop) on one monotonic clock, to the nanosecond; null where the event did not
happen. In memory they are float64; `stored.py` has their form in files.
"""

import pyarrow as pa

REQUESTS = pa.schema(
    [
        ("cell", pa.int32()),  # position of the cell in the journal
        ("engine", pa.string()),
        ("variant", pa.string()),  # null: the engine as it is
        ("label", pa.string()),  # as drawn: `roseinfer (-mp async admit)`
        ("load", pa.string()),  # as JSON: `{"kind":"trace","scale":0.4}` (harness/schema/load.py)
        ("repeat", pa.int32()),
        ("request", pa.int32()),  # position in the load
        ("input_tokens", pa.int32()),  # asked for
        ("output_tokens", pa.int32()),  # asked for
        ("t_sched", pa.float64()),  # when the schedule wanted it sent
        ("t_sent", pa.float64()),  # its last byte was written; of one that was sent again, the first time
        ("t_head", pa.float64()),  # the head of its response was there
        ("t_first", pa.float64()),  # first chunk that carries a token
        ("t_answer", pa.float64()),  # first chunk with a token that is not reasoning
        ("t_last", pa.float64()),  # last chunk that carries a token
        ("t_end", pa.float64()),  # the stream was closed
        ("completion_tokens", pa.int32()),  # that were sent, counted from the stream
        ("prompt_tokens", pa.int32()),  # as the server reports them, null if it does not
        ("chunks", pa.int32()),  # chunks that carry tokens
        # token_ids | continuous_usage | final_usage | inferred | estimated | null
        ("token_source", pa.string()),
        ("status", pa.int32()),  # HTTP status, null without one
        ("error", pa.string()),  # kind, null on success
        ("error_detail", pa.string()),
        ("finish_reason", pa.string()),
        ("queue_wait_ms", pa.float64()),  # as the engine reports it for this request, else null
        ("prefill_ms", pa.float64()),
        ("client", pa.int32()),  # which client process sent it
        ("host", pa.string()),  # the node of a cluster that sent it; null: the machine that wrote this table
        ("connection_reused", pa.bool_()),
        # until the connection that was opened for it was there; null: none was
        ("connecting_s", pa.float64()),
        ("resent", pa.int32()),  # how often it was sent again, as its connection had been closed
        # A later turn of a session: by how much t_sched is later than its time in the trace, as the answer
        # before it had not ended; 0 where it was in time, null for every other request.
        ("late_s", pa.float64()),
        ("adapter", pa.string()),  # asked for instead of the model; null: none
        ("category", pa.string()),  # of its prompt, as the dataset has it; null: none
        ("formatted", pa.bool_()),  # whether the answer was to have the response format
        ("reusable_tokens", pa.int32()),  # leading prompt tokens in whole blocks that one sent before had too
        ("cached_tokens", pa.int32()),  # prompt tokens from the server's prefix cache by its usage, else null
        ("hidden_tokens", pa.int32()),  # reasoning that the usage counts and that was not sent, else null
        # that the model's tokenizer finds in the text, null where it is not known
        ("text_tokens", pa.int32()),
        ("other_models", pa.string()),  # that its chunks name instead of the one asked for, else null
        ("retries", pa.int32()),  # how often it was sent again after a failure that may pass; null: unknown
        ("t_retry", pa.float64()),  # when it was sent the last time, null where that was the first
        ("tolerated", pa.bool_()),  # it failed, and its cell has no more failures than are tolerated
        ("unread_fields", pa.string()),  # of deltas, with text that was not read, else null
        ("tool_calls", pa.string()),  # names and arguments of those in its answer, as JSON; null: none
        ("t_call", pa.float64()),  # first chunk with a part of a tool call
        ("t_called", pa.float64()),  # last chunk with a part of the first tool call
        # Tool calls of an answer that ended by itself, and those of them that fit no tool that was offered or
        # whose arguments do not fit its schema; null where no tools were offered.
        ("judged_calls", pa.int32()),
        ("bad_calls", pa.int32()),
        ("session", pa.int32()),  # its number in the load, null for a request of none
        ("turn", pa.int32()),  # from 0 within the session
        # Of a session without failures, for the turn that ended last: t_sent of turn 0, and of the chain of
        # turns that led to this end the times to answer them, the times between them, and in the engine's
        # queue, where it reports that.
        ("session_start", pa.float64()),
        ("session_model_s", pa.float64()),
        ("session_tools_s", pa.float64()),
        ("session_queue_s", pa.float64()),
    ]
)

CHUNKS = pa.schema(
    [
        ("cell", pa.int32()),
        ("request", pa.int32()),
        ("t", pa.float64()),  # when its last part arrived, of the first chunk its first part
        ("tokens", pa.int32()),  # tokens it carries, at least 1
    ]
)

#: One row a reading of a server's own metrics; null where the server does not report it.
SERVER = pa.schema(
    [
        ("cell", pa.int32()),
        ("t", pa.float64()),  # between the question and its answer
        ("took_ms", pa.float64()),  # from the question to the whole answer
        ("running", pa.float64()),  # requests that are computed
        ("waiting", pa.float64()),  # requests that wait to be admitted
        ("kv_usage", pa.float64()),  # share of the KV cache that is in use, 0 to 1
        ("preemptions", pa.float64()),  # requests that lost their KV cache, since the first reading
        ("prefix_hits", pa.float64()),  # prompt tokens taken from the prefix cache, since then
        ("prefix_queries", pa.float64()),  # prompt tokens looked up in it, since then
        ("prefix_hit_rate", pa.float64()),  # share of prompt tokens found, as the server itself averages it
        ("steps", pa.float64()),  # steps of the engine, since the first reading
        ("step_tokens", pa.float64()),  # tokens that they computed, since then
    ]
)
#: Its counters.
COUNTED = ("preemptions", "prefix_hits", "prefix_queries", "steps", "step_tokens")

#: Columns without which no figure can be made.
NEEDED = {
    *("cell", "engine", "label", "load", "repeat", "request", "output_tokens", "input_tokens", "error"),
    *("t_sched", "t_sent", "t_first", "t_last", "t_end", "completion_tokens", "chunks", "t", "tokens"),
}

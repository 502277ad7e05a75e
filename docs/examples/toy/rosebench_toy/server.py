"""An OpenAI-compatible server that takes the place of yours in the tutorial.

It has no model: an answer is the prompt's first tokens, one after each pause, after 60 ms.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route


async def models(request: Request) -> JSONResponse:
    """What is served."""
    return JSONResponse({"object": "list", "data": [{"id": "toy", "object": "model"}]})


async def completions(request: Request) -> StreamingResponse:
    """A streamed answer of exactly `max_tokens` tokens, with usage at the end."""
    asked = await request.json()
    prompt, count = asked["prompt"], asked["max_tokens"]

    async def events() -> AsyncIterator[str]:
        await asyncio.sleep(0.06)
        for position in range(count):
            last = position == count - 1
            choice = {"index": 0, "text": " word", "finish_reason": "length" if last else None}
            choice["token_ids"] = [prompt[position % len(prompt)]]
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
            await asyncio.sleep(request.app.state.pause_s)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds from token to token")
    arguments = parser.parse_args()
    routes = [Route("/v1/models", models), Route("/v1/completions", completions, methods=["POST"])]
    app = Starlette(routes=routes)
    app.state.pause_s = arguments.pause
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning")

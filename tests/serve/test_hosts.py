"""By which names a server that only this machine reaches may be called."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from bringup.compile.serve.app import application
from bringup.compile.serve.hosts import names_of
from tests.serve.inside import serving

OWN = ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "::1", "localhost.:8", "proxy.example")
OTHERS = (
    "evil.example",
    "evil.example:8000",
    "10.0.0.1",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "",
    "[::2]",
)


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost"])
def test_loopback_answers_to_its_own_names_alone(bound: str):
    async def scenario() -> dict[str, httpx2.Response]:
        async with serving() as server:
            app = application(server.service, None, names_of(bound, ["proxy.example"]))
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
                return {host: await client.get("/v1/models", headers={"host": host}) for host in (*OWN, *OTHERS)}

    found = asyncio.run(scenario())
    assert {host: answer.status_code for host, answer in found.items()} == {
        **dict.fromkeys(OWN, 200), **dict.fromkeys(OTHERS, 421)
    }  # fmt: skip
    error = found["evil.example"].json()["error"]
    assert (error["code"], error["type"]) == ("wrong_host", "invalid_request_error")
    assert "--allow-host" in error["message"]


def test_a_server_that_others_reach_answers_to_any_name():
    assert names_of("0.0.0.0", []) is names_of("example.org", ["proxy"]) is None

"""A server without processes: what is asked is done at once, in this one."""

import pytest
from starlette.testclient import TestClient

from attnflow.web.server import create_app
from attnflow.web.work import do


class Inline:
    def __init__(self):
        self.asked = []

    def start(self):
        pass

    async def stop(self):
        pass

    async def ask(self, job, given, **how):
        self.asked.append((job, given))
        return do(job, given)


@pytest.fixture
def crew():
    return Inline()


@pytest.fixture
def client(tmp_path, crew):
    app = create_app(tmp_path / "runs", crew=crew)
    with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield client

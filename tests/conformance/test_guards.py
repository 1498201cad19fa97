"""The guards of every listener of the suite: the table in SECURITY.md, tried cell by cell."""

from __future__ import annotations

import ast
import contextlib
import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import listeners
import pytest
from listeners import CANARY, MODEL, Listener

import tokenwire
from tokenwire.local_server import Guard

ROOT = Path(__file__).parents[2]
FOREIGN = (
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "localhost.:{port}",
    "[",
    "",
)
OWN = ("localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST", "127.0.0.1")

LISTENERS: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Listener]]] = {
    "tokenwire watch --listen": partial(listeners.watch, admin=False),
    "tokenwire watch --admin": partial(listeners.watch, admin=True),
    "tokenwire cut": listeners.cut,
    "tokenwire inspect": listeners.inspect,
    "tokenwire torture": listeners.torture,
    "tokenwire demo": listeners.demo,
}
MADE_BY = {
    "tokenwire_live/watch/watcher.py": "tokenwire watch --listen",
    "tokenwire_live/inspecting/watched.py": "tokenwire watch --admin",
    "tokenwire_live/commands/cut.py": "tokenwire cut",
    "tokenwire_live/inspecting/inspector.py": "tokenwire inspect",
    "tokenwire_clients/server.py": "tokenwire torture",
    "tokenwire/demo_server.py": "tokenwire demo",
}
"""Where a listener is made, by the module that makes it."""
MAKERS = {
    "CuttingProxy": "tokenwire_live/cutting.py",
    "Proxy": "tokenwire_live/watch/proxy.py",
    "PageServer": "tokenwire_live/inspecting/server.py",
    "serving": "tokenwire/local_server.py",
}
"""What makes listeners, with the module that opens the port."""


def rows() -> dict[str, dict[str, str]]:
    """The table of guards, by listener and column."""
    text = (ROOT / "SECURITY.md").read_text("utf-8").partition("### The guards of its listeners\n")[2]
    head, _, *lines = [line for line in text.partition("\n#")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    return {row[0].strip("`"): dict(zip(cells[0][1:], row[1:], strict=True)) for row in cells[1:]}


@pytest.fixture(scope="module")
def alive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Listener]]:
    """Give `alive(name)`: a listener that is started once."""
    with contextlib.ExitStack() as open_ones:
        started: dict[str, Listener] = {}

        def listener(name: str) -> Listener:
            if name not in started:
                started[name] = open_ones.enter_context(LISTENERS[name](tmp_path_factory.mktemp("listener")))
            return started[name]

        yield listener


def path_of(listener: Listener) -> str:
    """A path that is answered, with the token where there is one."""
    return "/" + listener.url.split("/", 3)[3] if listener.url.count("/") > 2 else "/v1/models"


def is_answered(status: int) -> bool:
    return status != 403


def only_its_own_host(listener: Listener) -> None:
    for path in {path_of(listener), "/", "/metrics", "/healthz"}:
        for host in FOREIGN:
            assert not is_answered(listener.ask(path, host=host.format(port=listener.port) or " ")[0]), host
        for host in OWN:
            assert is_answered(listener.ask(path, host=host.format(port=listener.port))[0]), host
        assert not is_answered(listener.ask(path, "POST", host="evil.example")[0])


def its_own_host_and_named_ones(listener: Listener) -> None:
    only_its_own_host(listener)
    for host in ("watcher.internal", "Watcher.Internal:80"):
        assert listener.ask("/metrics", host=host)[0] == 200


def only_its_own_origin(listener: Listener) -> None:
    for path in {path_of(listener), "/"}:
        for origin in ("http://evil.example", "null", f"https://{listener.address}", "http://localhost:1"):
            assert not is_answered(listener.ask(path, Origin=origin)[0]), origin
            assert not is_answered(listener.ask(path, "POST", Origin=origin)[0]), origin
        assert is_answered(listener.ask(path, Origin=f"http://{listener.address}")[0])
        assert is_answered(listener.ask(path)[0])


def an_origin_to_act(listener: Listener) -> None:
    only_its_own_origin(listener)
    act = partial(listener.ask, f"{path_of(listener)}stop", "POST", body='{"number": 77}')
    assert not is_answered(act()[0])
    assert is_answered(act(Origin=f"http://{listener.address}")[0])


def is_passed_on(listener: Listener, name: str) -> None:
    listener.asked.clear()
    headers = {"Origin": "http://evil.example"} if name == "Origin" else {}
    assert listener.ask("/health", host="evil.example", **headers)[0] == 200
    (head,) = listener.asked
    assert "evil.example" in head[name]


def a_token_in_the_address(listener: Listener) -> None:
    path = path_of(listener)
    assert len(path) > 30
    assert listener.ask(path)[0] == 200
    for wrong in (path[:-2] + "-/", "/" + "a" * (len(path) - 2) + "/", path[: len(path) // 2], "//"):
        status, text = listener.ask(f"{wrong}exchange/watch/1")
        assert (status, CANARY in text) == (404, False)


def no_token(listener: Listener) -> None:
    assert listener.url.count("/") == 2


def counts_and_models(listener: Listener) -> None:
    full = listener.ask(path_of(listener))[1]
    assert CANARY in full
    assert listener.target in full
    shown = "".join(listener.ask(path)[1] for path in ("/", "/metrics", "/healthz"))
    assert "violations" in shown
    assert f'model="{MODEL}"' in listener.ask("/metrics")[1]
    for hidden in (CANARY, "a prompt", "/generate", listener.target, "kept/", "watch/1"):
        assert hidden not in shown, hidden


def nothing(listener: Listener) -> None:
    for path in ("/", "/presets", "/events", "/requirement/ids-are-counted"):
        assert listener.ask(path) == (404, "Not Found\n")


def what_the_target_shows(listener: Listener) -> None:
    assert listener.ask("/generate", "POST", body="{}")[1].count(CANARY) == 1


def everything(listener: Listener) -> None:
    paths = ("/tokenwire/cases", "/server_info")
    assert 200 in {listener.ask(path)[0] for path in paths}


def contacts(listener: Listener) -> list[Mapping[str, str]]:
    """The requests that reach a stranger whom the requests name in every place that they have."""
    met: list[Mapping[str, str]] = []
    with listeners.target(met) as stranger:
        for path in (
            stranger + "/",
            "/" + stranger,
            f"{path_of(listener)}?url={stranger}",
            path_of(listener),
        ):
            listener.ask(path)
        sent = {"requests": [{"dialect": "sglang-generate", "body": "{}", "to": stranger}], "url": stranger}
        for path in (f"{path_of(listener)}send", "/generate", stranger + "/generate"):
            with contextlib.suppress(http.client.RemoteDisconnected):  # pages that cannot act take no body
                listener.ask(path, "POST", body=json.dumps(sent), Origin=f"http://{listener.address}")
    return met


def contacts_nobody(listener: Listener) -> None:
    assert contacts(listener) == []
    assert listener.asked == []


def contacts_its_target(listener: Listener) -> None:
    listener.asked.clear()
    assert contacts(listener) == []
    assert listener.asked != []


def contacts_what_was_named(listener: Listener) -> None:
    assert contacts(listener) == []
    send = partial(listener.ask, f"{path_of(listener)}send", "POST", Origin=f"http://{listener.address}")
    sent = {"dialect": "sglang-generate", "body": '{"text": "a"}'}
    assert send(body=json.dumps({"requests": [sent]}))[0] == 200
    status, text = send(body=json.dumps({"requests": [{**sent, "to": "twin"}]}))
    assert (status, "does not support dialect" in text) == (400, True)


TRIALS: Mapping[str, Mapping[str, Callable[[Listener], None]]] = {
    "Host": {
        "its own": only_its_own_host,
        "its own, and `--admin-host`": its_own_host_and_named_ones,
        "passed on": partial(is_passed_on, name="Host"),
    },
    "Origin": {
        "its own or none": only_its_own_origin,
        "its own; none only to read": an_origin_to_act,
        "passed on": partial(is_passed_on, name="Origin"),
    },
    "token or key": {"a token in the address": a_token_in_the_address, "none": no_token},
    "shown without token or key": {
        "counts, and the names of models": counts_and_models,
        "nothing": nothing,
        "the responses of the target": what_the_target_shows,
        "everything": everything,
    },
    "contacts on request": {
        "nobody": contacts_nobody,
        "its target": contacts_its_target,
        "the servers that its command line names": contacts_what_was_named,
    },
}


@pytest.mark.parametrize(
    ("name", "column", "cell"),
    [(name, column, cell) for name, row in rows().items() for column, cell in row.items()],
)
def test_a_listener_keeps_what_the_table_says(
    alive: Callable[[str], Listener], name: str, column: str, cell: str
) -> None:
    TRIALS[column][cell](alive(name))


def called_in(module: Path) -> set[str]:
    """The names of all that a module calls."""
    calls = [
        node.func for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.Call)
    ]
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def test_every_listener_is_in_the_table() -> None:
    folder = Path(tokenwire.__file__).parents[1]
    calls = {path.relative_to(folder).as_posix(): called_in(path) for path in folder.rglob("*.py")}
    opening = {
        "start_server",
        "create_server",
        "_Server",
        "ThreadingHTTPServer",
        "TCPServer",
        "listen",
        "bind",
    }
    assert {name for name, called in calls.items() if called & (opening - {"listen"})} == {*MAKERS.values()}
    made = {name for name, called in calls.items() if called & MAKERS.keys()}
    assert made == MADE_BY.keys()
    assert set(MADE_BY.values()) == LISTENERS.keys() == rows().keys()


def test_the_table_has_one_trial_for_each_cell_and_no_other() -> None:
    used = {(column, cell) for row in rows().values() for column, cell in row.items()}
    assert used == {(column, cell) for column, cells in TRIALS.items() for cell in cells}


@pytest.mark.parametrize(
    ("address", "host", "admitted"),
    [
        ("0.0.0.0", "10.1.2.3:9464", True),
        ("::", "[fd00::1]:9464", True),
        ("0.0.0.0", "evil.example", False),
        ("10.1.2.3", "10.1.2.3:9464", True),
        ("10.1.2.3", "10.1.2.4:9464", False),
        ("127.0.0.1", "10.1.2.3", False),
        ("127.0.0.1", "127.0.0.1@evil.example", False),
        ("127.0.0.1", "0x7f.1", False),
    ],
)
def test_an_address_is_no_name_that_somebody_else_can_own(address: str, host: str, admitted: bool) -> None:
    assert Guard(address).admits(host, None) is admitted

"""The comparison with peers: what it counts, and its quickest part from start to end."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import forks
import pytest

from benchmarks import page
from benchmarks.load import load
from benchmarks.turns import Arm, Part, Table, run_turns
from sp500.errors import SP500Error

ROOT = Path(__file__).parent.parent.parent


def arm(name, *turns, **more):
    """An arm that gives seconds and a loss per turn, and fails where that is None."""
    left = iter(turns)

    def measure(folder):
        assert folder.is_dir()
        figures = next(left)
        if figures is None:
            raise SP500Error("does not start")
        return {"table": dict(zip(("seconds", "loss"), figures, strict=True))}

    return Arm(name, ("table",), measure, **more)


def test_ratios_are_of_one_turn_and_losses_are_compared(tmp_path):
    arms = [
        arm("ours", (2.0, 1.0), (4.0, 1.0), (2.0, 1.0), ours=True),
        arm("peer", (4.0, 1.0005), (10.0, 1.0005), (6.0, 1.0005)),
        arm("untrained", (1.0, 1.1), (1.0, 1.1), (1.0, 1.1)),
        arm("different", (1.0, 9.0), (1.0, 9.0), (1.0, 9.0), another="another model"),
        arm("broken", (1.0, 1.0), None),
    ]
    [table] = run_turns(Part(arms, [Table("table", "seconds", "ours", equal={"loss": 1e-3})]), 3, tmp_path, print)
    rows = {row["name"]: row for row in table["rows"]}
    assert rows["peer"]["times"] == {"median": 2.5, "low": 2.0, "high": 3.0}
    assert rows["peer"]["value"] == {"median": 6.0, "low": 4.0, "high": 10.0}
    assert {name: row["unequal"] for name, row in rows.items()} == {
        **{"ours": [], "peer": [], "untrained": ["loss"], "different": [], "broken": []}
    }
    assert rows["broken"]["reason"] == "does not start"
    assert len(rows["broken"]["turns"]) == 1


def test_requests_per_second_are_better_if_more(tmp_path):
    arms = [arm("ours", (10.0, 0.0), ours=True), arm("peer", (4.0, 0.0))]
    table = Table("table", "seconds", "ours", higher_is_better=True)
    [filled] = run_turns(Part(arms, [table]), 1, tmp_path, print)
    assert filled["rows"][1]["times"]["median"] == 2.5


class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200 if body["good"] and self.headers["authorization"] == "Bearer key" else 422)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_load_counts_answers_and_failures():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        good = load(url, {"good": True}, clients=4, seconds=0.3, key="key")
        bad = load(url, {"good": False}, clients=2, seconds=0.2, key="key")
        server.shutdown()
    assert good.failed == 0
    assert good.requests >= 4
    assert 0 < good.p50_ms <= good.p99_ms
    assert bad.requests == bad.failed >= 2


@pytest.mark.timeout(1200)
def test_start_runs_from_prices_to_the_table_with_equal_losses():
    done = forks.run(
        [str(ROOT / "benchmarks" / "run.py"), "start", "--quick", "--json", "--only", "plain"], timeout=1200
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    linear, setup = result["tables"]
    assert [(row["name"], row["reason"], row["unequal"]) for row in linear["rows"]] == [
        ("train.py --model.kind linear", "", []),
        ("plain script", "", []),
    ]
    assert all(row["times"]["median"] > 0 for row in linear["rows"])
    assert all(0 < row["turns"][0]["import_share"] <= 1 for row in linear["rows"])
    assert setup["rows"][0]["value"]["median"] < setup["rows"][0]["turns"][0]["seconds"]
    assert page.write([result]).count("\n| ") == 2 + 2 + 2 + 1
    assert "Not a measurement" in page.write([result])

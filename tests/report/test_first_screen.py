"""Every number and sentence of the report's first screen, next to those that plain arithmetic on record files gives."""
# ruff: noqa: RUF001 - the report writes the sign for times and a true minus

import json
import math
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from scale_rows import GIB, one
from search_records import side
from test_page import record, trained, trials

from sp500.report import page
from sp500.report.section import Runs, read_runs
from sp500.runs.cost import RateTable
from sp500.runs.store import RunStore

ROOT = Path(__file__).parents[2]
RATES = ROOT / "cluster" / "rates.yaml"
NAMES = {"sequential": "one after another", "packed": "packed without Ray", "ray": "Ray Tune"}
ARMS = {"in_memory": "in memory", "streaming": "streaming"}


def share(value: float, digits: int = 1, sign: str = "") -> str:
    return f"{100 * value:{sign}.{digits}f}%".replace("-", "−")


def took(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"


def held(value: float) -> str:
    return f"{float(f'{value / GIB:.3g}'):g} GiB" if value >= GIB else f"{value / 2**20:.0f} MiB"


def listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def usd(value: float) -> str:
    return "0 USD" if not value else f"{value:.{1 - math.floor(math.log10(value))}f} USD"


def is_busy(row: dict[str, Any]) -> bool:
    return (row.get("others_share") or 0) > 0.1 or (row.get("cpu_share") or 1) < 0.8


def sized(multiplier: int) -> str:
    return "the data as it is" if multiplier == 1 else f"{multiplier} times the data"


class Oracle:
    """What record files say, without a line of the report's code."""

    def __init__(self, records: list[dict[str, Any]], trials: dict[str, list[dict[str, Any]]]) -> None:
        self.records, self.trials = records, trials
        self.rows = next((run["scale"] for run in reversed(records) if run.get("scale")), [])
        self.search = next((run for run in reversed(records) if run.get("search") and run["arm"] == "all"), None)

    def label(self, row: dict[str, Any]) -> str:
        name = f"{row['num_workers']} Ray workers" if row["num_workers"] else ARMS[row["arm"]]
        several = len({row["place"] for row in self.rows}) > 1
        return f"{name}, {'one machine' if row['place'] == 'machine' else 'cluster'}" if several else name

    def timings(self) -> list[tuple[str, dict[str, float], bool]]:
        """Task, seconds by way, busy."""
        timings = []
        if self.search:
            arms = self.search["search"]["arms"]
            pair = ("ray", min((arm for arm in arms if arm != "ray"), key=lambda arm: arms[arm]["seconds"]))
            seconds = {NAMES[arm]: row["seconds"] for arm, row in arms.items()}
            timings.append(
                (f"{self.search['search']['configs']} configs", seconds, any(is_busy(arms[arm]) for arm in pair))
            )
        ended = [row for row in self.rows if row["status"] == "ok"]
        both = {row["multiplier"] for row in ended if row["arm"] == "streaming"}
        both &= {row["multiplier"] for row in ended if row["arm"] == "ray"}
        if both:
            rows = [row for row in ended if row["multiplier"] == max(both) and row["arm"] != "in_memory"]
            seconds = {self.label(row): row["seconds"] - row["writing_seconds"] for row in rows}
            timings.append((sized(max(both)), seconds, any(map(is_busy, rows))))
        return sorted(timings, key=lambda timing: timing[2])

    def clause(self, task: str, seconds: dict[str, float]) -> tuple[str, str]:
        ray = min(value for way, value in seconds.items() if "Ray " in way and "without" not in way)
        alone = min(value for way, value in seconds.items() if value != ray)
        times = alone / ray
        word = "about as fast" if 1 / 1.2 <= times <= 1.2 else "faster" if times > 1 else "slower"
        shown = word if "as fast" in word else f"{max(times, 1 / times):.1f}× {word}"
        return word, f"{task} {shown} ({took(ray)}, not {took(alone)})"

    def headline(self) -> str:
        if not any(run["num_workers"] or run["arm"] == "ray" for run in self.records):
            return "No run used a cluster, so what it would buy is not known yet."
        clauses = [self.clause(task, seconds) for task, seconds, busy in self.timings() if not busy]
        gone = {row["multiplier"] for row in self.rows if not row["num_workers"] and row["status"] != "ok"}
        fit = {row["multiplier"] for row in self.rows if not row["num_workers"] and row["status"] == "ok"}
        ray = {row["multiplier"] for row in self.rows if row["num_workers"] and row["status"] == "ok"}
        gains, losses = [], [clause for word, clause in clauses if word != "faster"]
        if only := sorted((gone & ray) - fit):
            budget = held(self.rows[0]["memory_limit_bytes"])
            gains.append(f"room for {listed(list(map(sized, only)))} (too large for one process in {budget})")
        elif ray and ray <= fit and clauses:
            losses.append("the largest data also fit one process")
        if faster := [clause for word, clause in clauses if word == "faster"]:
            gains.append(f"time: {listed(faster)}")
        if gains:
            return f"The cluster bought {listed(gains)}{f', but {listed(losses)}' if losses else ''}."
        if clauses:
            return f"The cluster bought nothing here: {listed(losses)}."
        return "What the cluster bought is not known: the machine was busy."

    def fits(self) -> tuple[str, str]:
        largest = max(row["multiplier"] for row in self.rows)
        parts = []
        for row in (row for row in self.rows if row["multiplier"] == largest):
            words = row["reason"].split()
            need = sum(int(words[place - 1]) for place, word in enumerate(words) if word == "bytes")
            used = held(row["peak_memory_bytes"]) if row["status"] == "ok" else f"would need {held(need)}"
            parts.append(f"{self.label(row)} {used}")
        windows = next(row["windows"] for row in self.rows if row["multiplier"] == largest and row["windows"])
        trained = max(row["multiplier"] for row in self.rows if row["status"] == "ok")
        budget = held(self.rows[0]["memory_limit_bytes"])
        caption = f"{sized(largest)} ({float(f'{windows:.3g}'):,.0f} windows): {listed(parts)}. The budget is {budget}."
        return f"{trained}× the data", caption

    def faster(self) -> tuple[str, str]:
        (task, seconds, busy), *others = self.timings()
        ways = sorted(seconds, key=lambda way: -seconds[way])
        caption = f"{task[0].upper()}{task[1:]}: {listed([f'{way} {took(seconds[way])}' for way in ways])}."
        pays = self.search and self.search["search"].get("break_even")
        if pays and " faster" not in self.clause(task, seconds)[1]:
            first = next(row for row in pays["configs"] if row["configs"] is not None)
            packed = self.search["search"]["arms"]["packed"]["cores"]
            caption += f" Ray pays from about {math.ceil(first['configs'])} configs on {first['cores']} cores"
            caption += f", against packs on {packed} cores."
        caption += "".join([f" Also: {self.clause(*other[:2])[1]}." for other in others if not other[2]][:1])
        if busy:
            caption += f" The machine was busy: the seconds of {task} are not reliable."
        return self.clause(task, seconds)[1].split("(")[0].removeprefix(task).strip(), caption

    def costs(self) -> tuple[str, str]:
        rates = yaml.safe_load(RATES.read_text())
        node = rates["types"]["general"]

        def hour(size: dict[str, float]) -> float:
            return size["cpus"] * node["cpu_hour"] + size["gib"] * node["gib_hour"]

        total = 0.0
        for run in self.records:
            cluster = run["machine"]["cluster"]
            if run["arm"] != "all" and cluster.get("hosts", 0) > 1:
                count = min(run["num_workers"], int(cluster["nodes"])) or int(cluster["nodes"])
                each = {"cpus": cluster["CPU"] / cluster["nodes"], "gib": cluster["memory"] / GIB / cluster["nodes"]}
                hourly = count * hour(each) + sum(map(hour, rates["beside"]))
                total += hourly * run["seconds"]["total"] / 3600
        assumed = "at assumed rates of 2024-12-01"
        caption = f"All runs together, {assumed}." if total else "Nothing was rented."
        if self.search:
            names, arms = self.search["search"]["runs"], self.search["search"]["arms"]
            alone = min((arm for arm in arms if arm != "ray"), key=lambda arm: arms[arm]["seconds"])
            seconds = {run["name"]: run["seconds"]["total"] for run in self.records}
            ray = hour(node["node"]) + sum(map(hour, rates["beside"]))
            prices = [
                f"{usd(hour(node['node']) * seconds[names[alone]] / 3600)} {NAMES[alone]}",
                f"{usd(ray * seconds[names['ray']] / 3600)} on Ray",
            ]
            task = f"{self.search['search']['configs']} configs"
            rented = "On rented nodes" if total else f"On rented nodes, {assumed}"
            caption += f" {rented}, in the same seconds, {task} would cost {listed(prices)}."
        return usd(total), caption

    def same(self) -> tuple[str, str]:
        pairs: dict[str, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
        for name in (self.search["search"]["runs"] if self.search else {}).values():
            for trial in self.trials.get(name, []):
                if trial["valid_loss"] is not None:
                    pairs["validation loss of a config in the search"][trial["id"]].append(trial["valid_loss"])
        for row in self.rows:
            if row["status"] == "ok" and row["best_epoch"]:
                pairs["test error"][row["multiplier"]].append(row["test_error"])
        gaps = {
            kind: {key: 1 - min(values) / max(values) for key, values in by.items() if len(values) > 1}
            for kind, by in pairs.items()
        }
        kind = max((kind for kind in gaps if gaps[kind]), key=lambda kind: max(gaps[kind].values()))
        largest, count = max(gaps[kind].values()), len(gaps[kind])
        at = max(gaps[kind], key=lambda key: gaps[kind][key])
        what = f"{kind} on {sized(at)}" if kind == "test error" else kind
        text = f"within {share(largest, 2)}" if largest >= 1e-4 else "all digits"
        pair = "one pair" if count == 1 else f"{count} pairs"
        caption = f"Largest difference between arms: {what}, {pair} with equal settings."
        return text, caption


def written(runs: Runs, tmp_path: Path) -> dict[str, Any]:
    page.write_runs(runs, tmp_path / "report")
    return json.loads((tmp_path / "report" / "report.json").read_text())["answers"]


def check(screen: dict[str, Any], oracle: Oracle) -> None:
    answers = {item["question"]: (item["number"], item["caption"]) for item in screen["answers"]}
    expected = {
        "Does it fit?": oracle.fits(),
        "Is it faster?": oracle.faster(),
        "What does it cost?": oracle.costs(),
        "Is it the same?": oracle.same(),
    }
    assert screen["headline"] == oracle.headline()
    assert {question: answers[question] for question in expected} == expected


def rates() -> RateTable:
    return RateTable.model_validate(yaml.safe_load(RATES.read_text()))


def test_first_screen_of_kept_runs_is_what_their_files_say(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "old_runs" / "runs.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    folders = [path.parent for path in (tmp_path / "runs").glob("*/record.json")]
    records = [json.loads((folder / "record.json").read_text()) for folder in folders]
    records.sort(key=lambda run: run["finished"])
    ledgers = {folder.name: folder / "trials.jsonl" for folder in folders}
    lines = {name: path.read_text().splitlines() for name, path in ledgers.items() if path.is_file()}
    oracle = Oracle(records, {name: [json.loads(line) for line in rows] for name, rows in lines.items()})
    screen = written(read_runs(RunStore(tmp_path / "runs"), rates()), tmp_path)
    check(screen, oracle)
    judged = [run for run in records if (run["metrics"].get("test") or {}).get("improvement")]
    lows = [run["metrics"]["test"]["improvement"]["low"] for run in judged]
    good = screen["answers"][-1]
    assert max(low for low in lows if low is not None) <= 0
    assert (good["number"], good["caption"][:3]) == ("0 of 2 better", "Not")


def arms(seconds: dict[str, float]) -> dict[str, Any]:
    quiet = {
        "others_share": 0.0,
        "cpu_share": 1.0,
        "configs": 18,
        "speedup_over_sequential": 1.0,
        "speedup_over_packed": 1.0,
        "cpu_seconds": 1.0,
        "trials_per_second": 1.0,
    }
    return {
        arm: {"seconds": value, "cores": 2, "start_seconds": 1.0, "work_seconds": 2.0, **quiet}
        for arm, value in seconds.items()
    }


def hand_made(ray: float, *, bought: bool) -> tuple[list[Any], dict[str, Any]]:
    """A search in three arms and two sizes of data; bought: only Ray trained on the larger."""
    seconds = {"sequential": 40.0, "packed": 20.0, "ray": ray}
    sides = [side(arm, minute, arm, took) for minute, (arm, took) in enumerate(seconds.items())]
    pays = {"cores": 8.0, "configs": [{"cores": 2, "configs": None}, {"cores": 4, "configs": 82.4}]}
    timed = {"runs": {arm: arm for arm in seconds}, "arms": arms(seconds), "break_even": pays, "same_best": True}
    whole = side("all", 3, "all", 99.0, **timed)
    reason = f"windows need {5 * GIB} bytes besides the {GIB // 2} bytes of the process"
    lacks = {"status": "out_of_memory", "reason": reason, "num_workers": 0}
    rows = [one(1, "streaming", 90.0), one(1, "ray", 30.0, 2), one(50, "in_memory", None, reason=reason)]
    rows += [one(50, "streaming", None, **lacks) if bought else one(50, "streaming", 90.0), one(50, "ray", 80.0, 2)]
    results = {arm: trials(1.0 + place / 10) for place, arm in enumerate(seconds)}
    results["ray"] = [
        trial.model_copy(update={"valid_loss": 0.45}) if trial.id == "c2" else trial for trial in results["ray"]
    ]
    return [*sides, whole, record("scale", 4, experiment="scale", arm="all", scale=rows)], results


@pytest.mark.parametrize(("ray", "bought", "start"), [
    (8.0, True, "The cluster bought room for 50 times the data (too large for one process in 2 GiB) and time: 18"),
    (50.0, False, "The cluster bought nothing here: 18 configs 2.5× slower (50 s, not 20 s)"),
    (21.0, False, "The cluster bought nothing here: 18 configs about as fast (21 s, not 20 s), 50 times the data"),
])  # fmt: skip
def test_headline_and_answers_follow_from_the_records(ray: float, bought: bool, start: str, tmp_path: Path) -> None:
    records, results = hand_made(ray, bought=bought)
    raw = [run.model_dump(mode="json") for run in records]
    oracle = Oracle(raw, {name: [trial.model_dump(mode="json") for trial in every] for name, every in results.items()})
    screen = written(Runs(records, {}, results, rates()), tmp_path)
    check(screen, oracle)
    assert screen["headline"].startswith(start)


def test_one_model_without_a_cluster_leaves_commands_for_the_rest(tmp_path: Path) -> None:
    run = trained("one", 0)
    gain = {"over": "mean", "metric": "mse", "value": 0.0412, "low": 0.031, "high": 0.052}
    run.metrics["test"]["improvement"] = gain
    screen = written(Runs([run], {}, {}), tmp_path)
    assert screen["headline"] == Oracle([run.model_dump(mode="json")], {}).headline()
    [good] = screen["answers"]
    assert good["number"] == f"{share(gain['value'])} lower error"
    interval = f"{share(gain['low'], sign='+')} to {share(gain['high'], sign='+')}"
    assert good["caption"] == (
        "Yes. Returns of ^GSPC: mlp 64x2 has a lower test MSE than the strongest naive forecast (training mean), 95% "
        f"interval {interval}; 1 of 1 models do."
    )
    commands = {item["question"]: item["command"] for item in screen["unanswered"]}
    assert list(commands) == [
        "Does it fit?", "Is it faster?", "What does it cost?", "Is it the same?", "Does it hold year after year?"
    ]  # fmt: skip
    html = (tmp_path / "report" / "index.html").read_text()
    assert html.count("Not run yet") == 1
    assert all(f"<code>{command}</code>" in html for command in commands.values())

import io

from rich.console import Console

from sp500.doctor import check
from sp500.doctor.check import ok, skipped, wrong

CHECKS = [ok("ray", "2.60.0"), wrong("token file", "others can read it", "chmod 600 it"), skipped("kubernetes", "none")]


def terminal(width, **given):
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard", **given)


def test_probe_that_fails_is_wrong_and_hides_no_other():
    def broken():
        raise RuntimeError("no such\nthing")

    checks = check.run_probes([("a", lambda: [ok("a", "1")]), ("b", broken), ("c", lambda: [ok("c", "3")])])
    assert [one.name for one in checks] == ["a", "b", "c"]
    assert (checks[1].state, "RuntimeError: no such thing" in checks[1].found) == ("wrong", True)


def test_text_without_a_terminal_is_a_line_per_check_and_their_count():
    assert check.text(CHECKS, Console(file=io.StringIO(), width=30)).splitlines() == [
        "ok       ray         2.60.0",
        "wrong    token file  others can read it: chmod 600 it",
        "skipped  kubernetes  none",
        "",
        "1 wrong, 1 ok, 1 skipped",
    ]


def test_text_in_a_terminal_keeps_to_its_width_and_loses_no_word():
    told = wrong("disk", " ".join(["word"] * 40), "do this")
    lines = check.text([told], terminal(60, no_color=True)).splitlines()
    assert max(len(line.rstrip()) for line in lines[:-2]) <= 80
    assert sum(line.count("word") for line in lines) == 40


def test_plain_says_whether_all_is_well():
    assert check.plain(CHECKS[:1]) == {
        "checks": [{"name": "ray", "state": "ok", "found": "2.60.0", "advice": ""}],
        "ok": True,
    }
    assert check.plain(CHECKS)["ok"] is False
    assert check.plain([CHECKS[2]])["ok"] is True

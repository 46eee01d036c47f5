from sp500.doctor import check
from sp500.doctor.check import ok, skipped, wrong

CHECKS = [ok("ray", "2.60.0"), wrong("token file", "others can read it", "chmod 600 it"), skipped("kubernetes", "none")]


def test_probe_that_fails_is_wrong_and_hides_no_other():
    def broken():
        raise RuntimeError("no such\nthing")

    checks = check.run_probes([("a", lambda: [ok("a", "1")]), ("b", broken), ("c", lambda: [ok("c", "3")])])
    assert [one.name for one in checks] == ["a", "b", "c"]
    assert (checks[1].state, "RuntimeError: no such thing" in checks[1].found) == ("wrong", True)


def test_text_is_a_line_per_check_and_their_count():
    assert check.text(CHECKS).splitlines() == [
        "ok       ray         2.60.0",
        "wrong    token file  others can read it: chmod 600 it",
        "skipped  kubernetes  none",
        "",
        "1 wrong, 1 ok, 1 skipped",
    ]


def test_plain_says_whether_all_is_well():
    assert check.plain(CHECKS[:1]) == {
        "checks": [{"name": "ray", "state": "ok", "found": "2.60.0", "advice": ""}],
        "ok": True,
    }
    assert check.plain(CHECKS)["ok"] is False
    assert check.plain([CHECKS[2]])["ok"] is True

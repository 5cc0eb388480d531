"""What is kept and for how long, and clearing up: a year of nights in small."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from sdgbias import store
from sdgbias.errors import StoreError
from sdgbias.store import maintenance, parquet
from tests.builders.store_rows import child, contents, run, tables

NOW = datetime(2026, 7, 1, tzinfo=UTC)
#: Model a has a run on each of these days, b one in January.
DAYS = [
    *("2026-01-05", "2026-01-06", "2026-02-03", "2026-02-04"),
    *(f"2026-03-0{day}" for day in range(1, 6)),
]


def a(day: str) -> str:
    return f"a-{day[5:]}"


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("year") / "r.duckdb"
    for day in DAYS:
        store.publish(path, run(a(day), model="a", finished_at=f"{day}T03:00:00"), tables(items=50))
    store.publish(path, run("b", model="b", finished_at="2026-01-05T04:00:00"), tables())
    return path


@pytest.fixture
def results(year: Path, tmp_path: Path) -> Path:
    shutil.copytree(year.parent, tmp_path / "r")
    return tmp_path / "r" / "r.duckdb"


def kept(results: Path, nights: int, per_model: int) -> dict[str, str]:
    planned = maintenance.plan(results, nights, per_model)
    return dict(zip(planned["run_id"], planned["kept"], strict=True))


def test_a_mistaken_run_is_removed_with_everything_of_it(results: Path) -> None:
    accepted = {"accepted_at": pd.Timestamp("2026-03-01"), "reason": "known"}
    rows = pd.DataFrame([{"run_id": name} | accepted for name in ("b", "a-01-05")])
    store.upsert(results, {"accepted": rows})
    before = contents(results)
    with pytest.raises(StoreError, match="no run 'c'; sdgbias results --results "):
        maintenance.remove(results, ["b", "c"])
    assert contents(results) == before, "nothing is removed where a name is wrong"
    assert list(maintenance.remove(results, ["b"])["model"]) == ["b"]
    after = contents(results)
    assert after["numbers"][0] == after["runs"][0] == len(DAYS)
    assert "b" not in store.run_ids(results) and len(store.run_ids(results)) == len(DAYS)
    assert after["items"] == before["items"], "the questions stay"
    assert list(store.query(results, "FROM accepted")["run_id"]) == ["a-01-05"]
    assert not (parquet.home(results) / parquet.folder_of("b")).exists()
    assert maintenance.orphans(results) == [] and maintenance.check(results) == []


def test_what_is_kept(results: Path) -> None:
    assert kept(results, nights=2, per_model=3) == {
        **dict.fromkeys(("a-01-05", "a-02-03", "a-03-01", "a-03-02"), ""),
        **dict.fromkeys(("a-01-06", "a-02-04"), "one a month"),
        **dict.fromkeys(("b", "a-03-05"), "newest of its model"),
        "a-03-04": "recent night",
        "a-03-03": "one of the last of its model",
    }
    few = {run_id for run_id, why in kept(results, 1, 1).items() if not why}
    assert few == {"a-01-05", "a-02-03", *(f"a-03-0{day}" for day in range(1, 5))}
    assert all(kept(results, nights=90, per_model=1).values())


def test_what_verdicts_people_and_nights_refer_to_is_kept(results: Path) -> None:
    rule = {"rule": "x", "task": "mcq", "test": "T1", "method": "full", "level": "", "side": ""}
    about = {"model": "a", "suite": "sdg", "metric": "accuracy", "verdict": "PASS"} | rule
    accepted = {"accepted_at": pd.Timestamp("2026-03-01"), "reason": "known"}
    # a model that did not change is asked about without a new run
    unchanged = {"model": "c", "suite": "sdg", "run_id": "a-01-05", "outcome": "unchanged"}
    old, new = "2026-03-04T0130", "2026-03-05T0130"
    compared = [{"night": new, "run_id": "a-03-05", "baseline": "a-03-01"}]
    compared += [{"night": old, "run_id": "a-03-04", "baseline": "a-01-05"}]
    compared += [{"night": "run:a-03-05", "run_id": "a-03-05", "baseline": "a-03-03"}]  # by hand
    rows = {
        "nights": [{"night": n, "started_at": pd.Timestamp(n[:10])} for n in (new, old)],
        "verdicts": [about | runs for runs in compared],
        "accepted": [{"run_id": "a-02-03"} | accepted],
        "night_outcomes": [{"night": new} | unchanged],
    }
    store.upsert(results, {name: pd.DataFrame(lines) for name, lines in rows.items()})

    why = kept(results, nights=1, per_model=1)

    runs = ("a-03-01", "a-03-03", "a-02-03", "a-01-05", "a-03-04")
    newest = ["newest verdicts"] * 2
    assert [why[r] for r in runs] == [*newest, "accepted", "recent night", ""]


def test_only_details_go_and_what_is_left_says_so(results: Path) -> None:
    before, planned = contents(results), maintenance.plan(results, 2, 3)
    assert contents(results) == before, "looking changes nothing"
    pd.testing.assert_frame_equal(maintenance.apply(results, 2, 3, NOW), planned)
    gone = set(planned.loc[planned["kept"] == "", "run_id"])
    left = set(store.query(results, "SELECT DISTINCT run_id FROM scores")["run_id"])
    after = contents(results)
    assert left == set(planned["run_id"]) - gone
    assert {name for name in before if after[name] != before[name]} == {"scores"}
    at = dict.fromkeys(sorted(gone), NOW.replace(tzinfo=None))
    assert store.dropped(results, [*gone, "b"]) == at
    assert not [p for r in gone for p in results.with_suffix(".runs").glob(parquet.folder_of(r))]
    assert maintenance.orphans(results) == []
    assert maintenance.info(results)["runs_without_details"] == 4
    assert len(maintenance.apply(results, 2, 3, NOW)) == len(planned) - 4, "nothing more"
    again = run("a-01-05", model="a", finished_at="2026-01-05T03:00:00")
    store.publish(results, again, tables(items=50))  # evaluated again: they are back
    assert store.dropped(results, ["a-01-05"]) == {} and contents(results)["runs"] == before["runs"]


def test_killed_between_catalogue_and_files(results: Path) -> None:
    code = f"""
from sdgbias.store import maintenance as keeping
import pathlib, datetime
pathlib.Path.unlink = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
keeping.apply(pathlib.Path({str(results)!r}), 2, 3, datetime.datetime(2026, 7, 1))
"""
    assert child(code).wait() == -9
    assert len(store.dropped(results, store.run_ids(results))) == 4
    assert len(maintenance.orphans(results)) == 4
    assert store.query(results, "FROM scores WHERE run_id = 'a-01-05'").empty
    assert maintenance.compact(results).orphans == 4 and maintenance.orphans(results) == []
    assert not list(results.with_suffix(".runs").glob("*01-05"))


def test_a_catalogue_that_leads_outside_deletes_nothing(results: Path) -> None:
    precious = results.parent / "precious.parquet"
    precious.write_bytes(b"of somebody else")
    with store.connect(results) as con:
        con.execute("UPDATE details SET file = '../precious.parquet' WHERE run_id = 'a-01-05'")

    with pytest.raises(StoreError, match="names a file outside"):
        maintenance.apply(results, 2, 3, NOW)

    assert precious.exists()


def test_compaction_keeps_every_row(results: Path) -> None:
    folder = results.with_suffix(".runs")
    for _ in range(3):  # holes
        store.publish(results, run("wide", model="w"), tables(items=4000))
    store.publish(results, run("wide", model="w"), {"scores": tables(0.1)["scores"]})
    (folder / "run_id=b" / ".scores-1.part").write_bytes(b"half")
    before, size = contents(results), results.stat().st_size
    with store.connect(results, read_only=True) as reader:
        with pytest.raises(StoreError, match="is held"):  # nothing is swapped under somebody's feet
            with store.connect(results, wait=0.1):
                pass
        assert reader.execute("SELECT count(*) FROM runs").fetchone() == (11,)
    done = maintenance.compact(results)
    assert contents(results) == before and done.orphans == 2
    assert done.before == size and done.after == results.stat().st_size <= size
    assert maintenance.check(results) == [] and not list(results.parent.rglob("*.part*"))
    store.publish(results, run("b", model="b"), tables(0.9))  # written to as before
    mass = store.query(results, "SELECT min(mass) AS m FROM scores WHERE run_id = 'b'")["m"]
    assert mass[0] == 0.9


def test_a_copy_beside_a_results_file_costs_it_no_details(results: Path) -> None:
    other = results.with_suffix(".bak")
    shutil.copy2(results, other)
    for clearing in (
        lambda: maintenance.remove(other, ["b"]),
        lambda: maintenance.apply(other, 1, 1, NOW),
        lambda: maintenance.compact(other),
        lambda: store.publish(results.with_suffix(".db"), run("c"), tables()),
    ):
        with pytest.raises(StoreError, match=r"has the same folders, r\.runs and r\.nights"):
            clearing()
    assert not maintenance.check(results) and not results.with_suffix(".db").exists()


def test_a_results_file_of_the_longest_name_is_compacted(results: Path) -> None:
    longest = results.rename(results.with_name("r" * 240 + ".duckdb"))
    results.with_suffix(".runs").rename(longest.with_suffix(".runs"))
    assert maintenance.compact(longest).after and not maintenance.check(longest)


def test_a_link_to_a_results_file_has_its_details_and_stays_a_link(results: Path) -> None:
    link = results.with_name("latest.duckdb")
    link.symlink_to(results.name)
    assert not maintenance.check(link)
    maintenance.compact(link)
    store.publish(link, run("c"), tables())
    assert link.is_symlink() and not maintenance.check(results)
    assert len(store.query(results, "FROM scores WHERE run_id = 'c'"))

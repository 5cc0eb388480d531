"""What `sdgbias publish` writes, read back by the schema or the reader that each format has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from sdgbias import store, wording
from sdgbias.errors import InfrastructureError, InputError, SdgbiasError, StoreError, UsageError
from sdgbias.methods.stats import Estimate
from sdgbias.raw.images.shards import ImageReader
from sdgbias.report import publish
from sdgbias.report.publish import Publication, PublishedFile, plan
from tests.builders.commands import ok, refused
from tests.builders.hub_uploads import taking_uploads
from tests.builders.published_run import publish_answers
from tests.builders.results import altered as copied_with
from tests.builders.results import publish_fake

SCHEMAS = Path(__file__).parents[1] / "schemas"
FORMATS = ("model-card", "dataset", "every-eval-ever")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, small_benchmark: Path) -> Path:
    return publish_answers(tmp_path_factory.mktemp("r") / "sdgbias.duckdb", small_benchmark)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, results: Path, small_benchmark: Path) -> Path:
    out = tmp_path_factory.mktemp("published") / "all"
    publish.write(plan(results, small_benchmark, FORMATS, None, "demo/bench").files, out)
    return out


def validated(name: str) -> Callable[[object], None]:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema).validate


def stored(results: Path, where: str = "true") -> pd.DataFrame:
    return store.query(results, f"FROM metrics WHERE run_id = 'r1' AND {where} ORDER BY ALL")


# ---------------------------------------------------------------------------- results


def test_every_eval_ever_records_follow_its_schemas(folder: Path, results: Path) -> None:
    [path] = folder.glob("every_eval_ever/data/sdgbias/demo/tiny/*.json")
    samples = path.with_name(f"{path.stem}_samples.jsonl")
    record = json.loads(path.read_text())
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    validated("every_eval_ever")(record)
    for row in rows:
        validated("every_eval_ever_instance")(row)
    detail = record["detailed_evaluation_results"]
    assert detail["total_rows"] == len(rows) > 500
    assert folder / "every_eval_ever" / detail["file_path"] == samples
    assert {r["evaluation_id"] for r in rows} == {record["evaluation_id"]}
    by_id = {r["evaluation_result_id"]: r["score_details"] for r in record["evaluation_results"]}
    scores = [(r["evaluation_result_id"], r["evaluation"]["score"]) for r in rows]
    counted = pd.DataFrame(scores, columns=["id", "right"]).groupby("id")["right"]
    for name, share in counted.mean().items():
        assert by_id[name]["score"] == pytest.approx(share)
        assert by_id[name]["uncertainty"]["num_samples"] == counted.count()[name]
    numbers = store.query(results, "FROM predictions WHERE task = 'regression'")["value"]
    estimates = [r for r in rows if r["evaluation_name"].startswith("sdgbias regression")]
    assert {float(r["output"]["raw"][0]) for r in estimates} <= set(numbers)  # not first digits
    assert len(by_id) == len(stored(results, "metric <> 'share_optimistic'"))
    assert "clustered by place" in json.dumps(by_id)
    row = stored(results, "task = 'mcq' AND test = 'T1' AND method = 'full'").iloc[0]
    interval = by_id["r1/mcq/T1/full/accuracy"]["uncertainty"]["confidence_interval"]
    assert (interval["lower"], interval["upper"]) == (row["ci_low"], row["ci_high"])


def test_the_hub_reads_the_metadata_of_a_model_card(folder: Path, results: Path) -> None:
    from huggingface_hub import ModelCard, parse_eval_result_entries

    found = ModelCard.load(folder / "model_card/tiny/README.md").data.eval_results
    assert len(found) == len(stored(results))
    row = stored(results, "task = 'mcq' AND test = 'T2' AND method = 'q_only'")
    row = row[row["metric"] == "accuracy"].iloc[0]
    [same] = [r for r in found if (r.task_name, r.metric_name) == ("mcq", "Accuracy (q_only, T2)")]
    assert same.metric_value == row["value"] and same.metric_args["n"] == row["n"]
    assert same.metric_args["ci_high"] == row["ci_high"]
    text = (folder / "model_card/tiny/.eval_results/sdgbias.yaml").read_text()
    entries = parse_eval_result_entries(yaml.safe_load(text))
    assert {(e.dataset_id, e.task_id) for e in entries} == {
        ("demo/bench", f"{task}_{method}")
        for task in ("mcq", "regression")
        for method in ("full", "cade")
    }
    pooled = stored(results, "task = 'mcq' AND test = 'all' AND method = 'cade'").iloc[0]
    [cade] = [e for e in entries if e.task_id == "mcq_cade"]
    assert cade.value == pooled["value"]
    assert str(wording.written(Estimate.of_row(pooled))) in cade.notes


def test_one_card_has_every_suite_of_its_model(small_benchmark: Path, tmp_path: Path) -> None:
    """Two runs of one model: no file is announced and lost, and no two numbers share a name."""
    results, out = publish_answers(tmp_path / "sdgbias.duckdb", small_benchmark), tmp_path / "out"
    publish_answers(results, small_benchmark, "r2", suite="people")
    with store.connect(results) as con:
        con.execute("UPDATE numbers SET parameter = 'classes', x = 13 WHERE run_id = 'r2'")
        every = "SELECT * REPLACE (52 AS x) FROM numbers WHERE run_id = 'r2'"
        con.execute(f"INSERT INTO numbers BY NAME {every}")
    files = plan(results, small_benchmark, ("model-card",), None, "demo/bench").files
    paths = [path for path, _ in publish.write(files, out)]
    assert len(paths) == len(set(paths)) == sum(p.is_file() for p in out.rglob("*"))
    card = (out / "model_card/tiny/README.md").read_text(encoding="utf-8")
    assert "## SDGBiasBench, rebuilt" in card and "## Recognition of people, by group" in card
    index = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"]
    splits = {(r["dataset"]["name"], r["dataset"]["split"]) for r in index}
    assert splits == {
        ("SDGBiasBench, rebuilt", "test"),
        ("Recognition of people, by group", "all"),  # of people nothing is held out
    }
    names = [
        (r["dataset"]["name"], r["task"]["name"], m["name"]) for r in index for m in r["metrics"]
    ]
    assert len(names) == len(set(names)) > 20


def test_the_dataset_is_named_for_the_runs_of_its_benchmark_alone(
    small_benchmark: Path, tmp_path: Path
) -> None:
    results = publish_answers(tmp_path / "sdgbias.duckdb", small_benchmark)
    publish_answers(results, small_benchmark, "r2", suite="mine", benchmark_id="another")
    publish_answers(results, small_benchmark, "r3", suite="mine", benchmark_id="a third")
    found = plan(results, small_benchmark, ("model-card",), None, "demo/bench")
    card, entries = contents(found).values()
    index = yaml.safe_load(card.split(b"---")[1])["model-index"][0]["results"]
    named = {tuple(r["dataset"].get(k) for k in ("name", "type", "revision")) for r in index}
    assert named == {
        ("SDGBiasBench, rebuilt", "demo/bench", None),
        ("mine", "sdgbias", "another"),
        ("mine", "sdgbias", "a third"),
    }
    assert len(yaml.safe_load(entries)) == 4
    found = plan(results, small_benchmark, ("model-card",), ["r2"], "demo/bench")
    assert len(found.files) == 1 and "no run answers the benchmark" in found.withheld[-1]


def test_a_title_or_licence_of_several_lines_stays_in_its_line(
    small_benchmark: Path, tmp_path: Path
) -> None:
    config = {"spec": {"licence": "One\n---\ntwo <b>"}}
    results = publish_answers(
        tmp_path / "r.duckdb", small_benchmark, title="Tiny\n---\n<b>", config=config
    )
    [card] = contents(plan(results, small_benchmark, ("model-card",), None, "")).values()
    lines = card.decode().splitlines()
    assert "# Tiny --- &lt;b>" in lines and "- model_licence: One --- two &lt;b>" in lines
    assert lines.count("---") == 2
    shown = ok("publish", "model-card", "--results", results, "--benchmark", small_benchmark)
    assert "licence of model tiny: One --- two <b>" in shown


def test_a_difference_of_groups_is_in_points_and_has_no_better_end(
    small_benchmark: Path, tmp_path: Path
) -> None:
    """Of a rate, too: as a rate it would have a bound of 0 and an interval below it."""
    results = publish_answers(tmp_path / "sdgbias.duckdb", small_benchmark, suite="people")
    with store.connect(results) as con:
        con.execute("""
            UPDATE numbers SET metric = 'false_yes_rate', attribute = 'age', "group" = 'young',
                other = 'old', parameter = 'classes', x = 52, "value" = 0.05, low = -0.12
            WHERE metric = 'accuracy'""")
    files = contents(plan(results, small_benchmark, ("model-card", "every-eval-ever"), None, ""))
    card, record = files["model_card/tiny/README.md"].decode(), next(iter(files.values()))
    assert "wrong class age:young-old, 52 classes | +5.0\xa0points" in card
    metrics = {r["metric_config"]["metric_id"] for r in json.loads(record)["evaluation_results"]}
    assert metrics == {"interval_accuracy"}


# ---------------------------------------------------------------------------- dataset


def test_datasets_shows_the_pictures_of_the_benchmark(
    folder: Path, small_benchmark: Path, tmp_path: Path
) -> None:
    import datasets

    at = str(folder / "dataset")
    found = datasets.load_dataset(at, cache_dir=str(tmp_path))
    items = pd.read_parquet(small_benchmark / "items_mcq.parquet").set_index("item_id")
    splits = items["split"].value_counts()
    assert {k: len(v) for k, v in found.items()} == {"validation": splits.val, "test": splits.test}
    row = found["test"][0]
    assert row["image"].size == (448, 448) and row["answer"] == items["answer"][row["item_id"]]
    prompts = pd.read_parquet(small_benchmark / "prompts.parquet")
    mine = prompts[(prompts["item_id"] == row["item_id"]) & (prompts["test"] == "T3")]
    assert row["prompt_T3"] == mine["text"].iloc[0]
    other = datasets.load_dataset(at, "regression", split="test", cache_dir=str(tmp_path))
    assert other.features["image"] == datasets.Image() and len(other[0]["prompt_T5"]) > 10
    reader, seen = ImageReader(small_benchmark), 0
    for path in folder.glob("dataset/data/*/*.parquet"):
        table = pq.read_table(path)
        assert not {"lat", "lon", "latitude", "longitude"} & set(table.column_names)
        for row in table.select(["image", "image_id"]).to_pylist():
            assert (row["image"]["bytes"],) == reader[row["image_id"]]
            seen += 1
    assert seen == 80


# ---------------------------------------------------------------------------- what is withheld


def with_card(benchmark: Path, to: Path, **fields: object) -> Path:
    """A copy of a benchmark whose card says something else."""
    copy = shutil.copytree(benchmark, to / "benchmark")
    card = json.loads((copy / "benchmark.json").read_text())
    (copy / "benchmark.json").write_text(json.dumps(card | fields))
    return copy


def test_questions_of_narrow_sources_are_withheld_everywhere(
    small_benchmark: Path, results: Path, tmp_path: Path
) -> None:
    real = with_card(small_benchmark, tmp_path, synthetic=False)
    found = plan(results, real, FORMATS, None, "")
    items = pd.read_parquet(real / "items_mcq.parquet")
    narrow = items[items["source"].str.startswith(("ihme_haq", "who_gho"))]
    held = [line for line in found.withheld if "terms don't allow" in line]
    assert len(held) == 2 and len(narrow) == sum(int(line.split()[0]) for line in held) > 0
    publish.write(found.files, tmp_path / "out")
    ids = set(map(str, narrow["item_id"]))
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".json", ".jsonl"):
            assert not ids & set(path.read_text().replace("_", '"').replace(":", '"').split('"'))
        if path.suffix == ".parquet":
            assert not ids & set(map(str, pq.read_table(path)["item_id"].to_pylist()))
    card = (tmp_path / "out/dataset/README.md").read_text()
    assert all(f"\n- {line}\n" in card for line in held)


def contents(found: Publication) -> dict[str, bytes]:
    """Path -> bytes of the files that a dry run makes."""
    return {file.path: b"".join(file.content()) for file in found.files if not file.estimate}


def test_answers_stay_where_their_benchmark_is_not(
    results: Path, small_benchmark: Path, tmp_path: Path
) -> None:
    """Neither without a benchmark nor with another one; the record, which is passed on, says so
    without a path."""
    other = publish_fake(tmp_path / "fake.duckdb")
    for file, benchmark, runs in (
        (results, tmp_path / "none", None),
        (other, small_benchmark, store.latest_runs(other)),
    ):
        found = plan(file, benchmark, FORMATS[2:], runs, "")
        for record in map(json.loads, contents(found).values()):
            validated("every_eval_ever")(record)
            reason = record["source_metadata"]["additional_details"]["no_samples"]
            assert "name its folder with --benchmark" in reason and "/" not in reason
            assert any(line.endswith(reason) for line in found.withheld)
            for result in record["evaluation_results"]:
                bounds, score = result["metric_config"], result["score_details"]["score"]
                assert float(bounds["min_score"]) <= score <= float(bounds["max_score"]), bounds


def test_answers_that_retention_removed_are_said_to_be(
    small_benchmark: Path, results: Path, tmp_path: Path
) -> None:
    copy = copied_with(results, tmp_path, "UPDATE details SET dropped_at = '2026-11-25 01:00:00'")
    found = plan(copy, small_benchmark, ("every-eval-ever",), None, "")
    why = "its details were removed on 2026-11-25 (sdgbias store keep)"
    assert f"single answers of r1: {why}" in found.withheld
    [record] = map(json.loads, contents(found).values())
    assert record["source_metadata"]["additional_details"] == {"no_samples": why}


def test_people_and_own_questions_are_numbers_only(small_benchmark: Path, tmp_path: Path) -> None:
    """And a local folder is no model id."""
    results = tmp_path / "sdgbias.duckdb"
    for suite in ("people", "mine"):
        config = {"spec": {"repo": f"path:/secret/{suite}"}}
        publish_answers(
            results, small_benchmark, f"r-{suite}", suite=suite, model=suite, config=config
        )
    found = plan(results, small_benchmark, FORMATS, None, "")
    assert sum("single answers" in line for line in found.withheld) == 2
    for path, content in contents(found).items():
        assert "samples" not in path and "secret" not in path and b"/secret" not in content
        if path.startswith("every_eval_ever"):
            record = json.loads(content)
            facts = record["model_info"]["additional_details"]
            people = facts["suite"] == "people"
            assert facts["split"] == ("all" if people else "test")
            name = "Recognition of people, by group" if people else "mine"
            results_of = record["evaluation_results"]
            assert {r["source_data"]["dataset_name"] for r in results_of} == {name}


def test_an_infinite_end_of_a_foreign_file_is_no_interval(results: Path, tmp_path: Path) -> None:
    copy = copied_with(results, tmp_path, "UPDATE numbers SET low = '-inf' WHERE run_id = 'r1'")
    [record, *_] = plan(copy, tmp_path, ("every-eval-ever",), None, "").files
    assert "confidence_interval" not in b"".join(record.content()).decode()


def test_planted_models_only_by_name(small_benchmark: Path, tmp_path: Path) -> None:
    results = tmp_path / "sdgbias.duckdb"
    publish_answers(results, small_benchmark, provenance="planted")
    with pytest.raises(UsageError, match=r"nothing to publish.*planted"):
        plan(results, small_benchmark, ("every-eval-ever",), None, "")
    assert plan(results, small_benchmark, ("every-eval-ever",), ["r1"], "").files


# ---------------------------------------------------------------------------- writing


def test_the_same_bytes_again_and_nothing_of_this_machine_in_them(
    folder: Path, results: Path, small_benchmark: Path, tmp_path: Path
) -> None:
    publish.write(plan(results, small_benchmark, FORMATS, None, "demo/bench").files, tmp_path / "b")
    for path in filter(Path.is_file, folder.rglob("*")):
        content = path.read_bytes()
        assert (tmp_path / "b" / path.relative_to(folder)).read_bytes() == content
        for place in (str(small_benchmark), f"{Path.home()}/"):
            assert place.encode() not in content, path


def test_nothing_half_written(tmp_path: Path) -> None:
    def full() -> list[bytes]:
        raise OSError(28, "No space left on device")

    whole = PublishedFile("a.json", lambda: [b"{}"])
    with pytest.raises(StoreError, match="No space left"):
        publish.write([whole, PublishedFile("b/c.json", full)], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert publish.write([whole], tmp_path / "out") == [("a.json", 2)]
    with pytest.raises(UsageError, match="not an empty folder"):
        publish.write([whole], tmp_path / "out")


def test_what_cannot_be_published(small_benchmark: Path, results: Path, tmp_path: Path) -> None:
    for fields, run, code, message in (
        ({"images": "none"}, None, 3, "built with --no-images"),
        ({"suite": "people"}, None, 2, "not ours to pass on; numbers alone: sdgbias publish"),
        ({}, ["r2"], 7, "no run 'r2'"),
    ):
        copy = with_card(small_benchmark, tmp_path / message, **fields)
        with pytest.raises(SdgbiasError, match=message) as refusal:
            plan(results, copy, FORMATS, run, "")
        assert refusal.value.exit_code == code
    with pytest.raises(UsageError, match="--dataset 'a b'; valid: OWNER/NAME"):
        plan(results, small_benchmark, FORMATS, None, "a b")


def test_a_folder_that_is_no_whole_benchmark_is_one_line(
    small_benchmark: Path, results: Path, tmp_path: Path
) -> None:
    """Of an earlier version, or put together by hand."""

    def altered(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Path:
        copy = with_card(small_benchmark, tmp_path / str(len(list(tmp_path.iterdir()))))
        change(pd.read_parquet(copy / f"{name}.parquet")).to_parquet(copy / f"{name}.parquet")
        return copy

    for copy, message in (
        (with_card(small_benchmark, tmp_path / "a", synthetic=False, sources_used=[{}]), "'redis"),
        (altered("items_mcq", lambda rows: rows.drop(columns="split")), "split"),
        (altered("items_mcq", lambda rows: rows.drop(columns="image_id")), "image_id"),
        (altered("prompts", lambda rows: pd.concat([rows, rows])), "duplicate"),
    ):
        with pytest.raises(InputError, match=f"no whole benchmark .*{message}.*build") as refusal:
            plan(results, copy, ("dataset",), None, "")
        assert "\n" not in str(refusal.value)


def test_damaged_prompts_are_named_and_not_the_results(
    small_benchmark: Path, results: Path, tmp_path: Path
) -> None:
    copy = with_card(small_benchmark, tmp_path / "copy")
    (copy / "prompts.parquet").unlink()
    for content in (None, b"PAR1 cut short"):
        if content is not None:
            (copy / "prompts.parquet").write_bytes(content)
        with pytest.raises(InputError, match=r"^\S+/prompts\.parquet: .*sdgbias build --out"):
            plan(results, copy, ("every-eval-ever",), None, "")


def test_upload_goes_to_a_private_dataset(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taking_uploads(monkeypatch, tmp_path, "hf_right", "hf_right") as hub:
        said = publish.upload(folder / "dataset", "demo/bench")
    assert said.endswith("/commit/1") and hub.private == {"demo/bench": True}
    assert hub.files == {
        path.relative_to(folder / "dataset").as_posix(): path.read_bytes()
        for path in filter(Path.is_file, (folder / "dataset").rglob("*"))
    }
    with taking_uploads(monkeypatch, tmp_path, "hf_right", "hf_wrong") as hub:
        with pytest.raises(InfrastructureError, match="check HF_TOKEN"):
            publish.upload(folder / "dataset", "demo/bench")
        assert hub.files == {}


# ---------------------------------------------------------------------------- command


def test_the_command(results: Path, small_benchmark: Path, tmp_path: Path) -> None:
    where = ("--results", results, "--benchmark", small_benchmark)
    shown = ok("publish", *where)
    assert "about " in shown and "dataset/data/mcq/test-00000-of-00001.parquet" in shown
    assert "licence of model tiny: apache-2.0" in shown and "withheld: coordinates" in shown
    assert shown.endswith("Nothing is written or sent. To write these files: --write DIR\n")
    out = tmp_path / "out"
    made = json.loads(ok("publish", "every-eval-ever", *where, "--write", out, "--json"))
    assert {f["path"]: f["bytes"] for f in made["files"]} == {
        p.relative_to(out).as_posix(): p.stat().st_size
        for p in filter(Path.is_file, out.rglob("*"))
    }
    assert made["upload"] is None
    assert "--write" in refused(2, "publish", *where, "--upload", "a/b")
    unwritten = ["--write", str(tmp_path / "never"), "--upload", "not/a/name"]
    assert "--upload not/a/name" in refused(2, "publish", *where, *unwritten)
    assert not (tmp_path / "never").exists(), "written before the name was read"
    assert "'pdf'" in refused(2, "publish", "pdf", *where)

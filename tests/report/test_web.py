"""The pages of `sdgbias serve` as a browser asks for them, without a browser: what they say, what
they refuse, and that they only read."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import uvicorn
from starlette.testclient import TestClient
from typer.testing import CliRunner

from sdgbias import store
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.cli import app as command
from sdgbias.errors import UsageError
from sdgbias.report import leaderboard
from sdgbias.report.publish import runs as publish_runs
from sdgbias.report.reader import Results
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
from sdgbias.store import views
from sdgbias.store.tables import DETAILS
from tests.builders.night_stubs import entry
from tests.builders.nights import BROKEN, publish_persons
from tests.builders.nights import name as night_name
from tests.builders.results import altered, copied
from tests.builders.store_rows import holding
from tests.builders.web_pages import BEFORE, RUN, client_of, text

PAGES = (
    "/",
    "/nights",
    f"/nights/{night_name(3)}",
    "/numbers",
    "/numbers?task=regression&metric=mae",
    "/models",
    "/models/fake-optimist",
    f"/models/{BROKEN}",
    "/runs",
    "/questions",
    f"/questions/{RUN}/mcq/1",
    f"/questions/{RUN}/regression/1060?test=T2",
    "/compare",
    f"/compare?a={BEFORE}&b={RUN}",
    f"/compare?a={RUN}&b=fake-pessimist-1",
)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_whole_and_safe_and_leaves_the_results_as_they_are(
    client: TestClient, served: Path, page: str
) -> None:
    before = contents(served.parent)
    answer = client.get(page)
    assert answer.status_code == 200, text(answer.text)
    assert contents(served.parent) == before
    html = answer.text
    assert html.count("<h1") == 1 and 'lang="en"' in html and "<title>" in html
    inline = re.search(r"<script(?! src=)|\sstyle=|\son\w+=|<style", html)
    assert not inline, "the policy allows no inline script or style"
    foreign = re.search(r'(?:src|href|action)="(?:https?:)?//', html)
    assert not foreign, "a page refers to this server alone"
    assert "<b>quarantined" not in html and "</script><b>" not in html
    for header in ("content-security-policy", "x-content-type-options", "referrer-policy"):
        assert header in answer.headers
    assert "unsafe" not in answer.headers["content-security-policy"]
    for table in re.findall(r"<table>.*?</table>", html, re.DOTALL):
        assert "<caption>" in table and 'scope="col"' in table
        assert '<th scope="row"' in table or "colspan" in table


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(client: TestClient, method: str) -> None:
    for page in ("/", "/questions", "/models/fake-optimist", "/health", "/static/style.css"):
        assert client.request(method, page).status_code == 405
    routes = [r for r in client.app.routes if hasattr(r, "methods")]  # type: ignore[attr-defined]
    assert len(routes) > 12 and all(set(r.methods) == {"GET", "HEAD"} for r in routes)
    assert client.head("/static/style.css").status_code == 200


def test_the_numbers_of_every_run_are_found_and_shown(client: TestClient, served: Path) -> None:
    chosen = {"task": "mcq", "metric": "accuracy", "method": "cade", "test": "T2"}
    chosen |= {"pillar": "all", "indicator": "all"}
    where = " AND ".join(f"{name} = '{value}'" for name, value in chosen.items())
    stored = store.query(served, f"FROM metrics WHERE {where}").set_index("run_id")
    want = stored["value"].to_dict()
    with Results(served).reading() as reader:
        asked = reader.frame("SELECT run_id, finished_at FROM runs ORDER BY finished_at")
        for some in (asked["run_id"][-2:], asked["run_id"], list(want), []):
            values = leaderboard.numbers(reader, chosen, some).set_index("run_id")["value"]
            assert values.to_dict() == {r: want[r] for r in {*some} & set(want)}
    csv = pd.read_csv(io.StringIO(client.get("/numbers.csv?method=cade&test=T2").text))
    assert len(csv) == 8 and list(csv["value"]) == pytest.approx([want[r] for r in csv["run_id"]])
    html = client.get("/numbers?metric=accuracy&method=cade&test=T2").text
    row, said = stored.loc[RUN], text(html)
    interval = f"{100 * row['ci_low']:.1f}–{100 * row['ci_high']:.1f}"
    for part in (f"{100 * row['value']:.1f} %", interval, f"{row['n']:.0f}", "no change"):
        assert part in said
    assert "The numbers behind the chart (8)" in said, "2 models x 4 nights; one model has none"
    assert html.count('class="mark-line') == 2, "a chart for each model"
    dots = re.findall(r'layer_2_marks">(.*?)</g>', html)
    assert sum(part.count("<path") for part in dots) == 2 + 4, "a dot for each scored night"


def test_a_model_shows_what_its_run_found_as_the_report_does(client: TestClient) -> None:
    page = client.get("/models/fake-optimist").text
    findings = page.split('id="findings"')[1].split("</section>")[0]
    assert "Without any evidence" in findings and 'style="' not in page.split("<body")[1]
    assert 'id="parameters"' in page and page.count("as Figure 7") >= 1


def test_a_model_page_follows_its_run_and_opens_no_details(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = copied(served, tmp_path / "r.duckdb"), []
    show = views.show

    def record(con: Any, results: Path, tables: Sequence[str], *more: Any) -> None:
        opened.extend(set(tables) & set(DETAILS))
        show(con, results, tables, *more)

    monkeypatch.setattr(views, "show", record)
    client = client_of(path)

    def findings() -> str:
        page = client.get("/models/fake-optimist")
        assert page.status_code == 200
        return page.text.split('id="findings"')[1].split("</section>")[0]

    before = findings()
    assert findings() == before and opened == []
    sql = "SELECT * EXCLUDE (run_id) REPLACE (value / 2 AS value) FROM numbers WHERE run_id = ?"
    halved = store.query(path, sql, [RUN])
    monkeypatch.undo()
    store.replace(path, RUN, {"numbers": halved})
    assert findings() != before


@pytest.mark.parametrize(
    ("page", "status", "said"),
    [
        ("/numbers?task=regression&metric=accuracy", 200, "Not available together: metric 'acc"),
        ("/numbers?metric=nonsense", 400, "unknown metric"),
        ("/numbers?suite=nonsense", 400, "unknown suite"),
        ("/numbers?nights=0", 400, "nights"),
        ("/runs?page=x", 400, "page"),
        ("/runs?model=x", 400, "unknown model"),
        ("/questions?country=Atlantis", 400, "unknown country"),
        ("/questions?test=T9", 400, "unknown test"),
        ("/questions?outcome=maybe", 400, "unknown outcome"),
        ("/questions?direction=up", 400, "unknown direction"),
        (f"/questions?q={'x' * 101}", 400, "q "),
        (f"/questions/{RUN}/mcq/1?test=T9", 400, "unknown test"),
        (f"/questions/{RUN}/mcq/1?back=/questions?urban=nowhere", 400, "unknown urban"),
        (f"/questions/{RUN}/mcq/x", 400, "item_id"),
        (f"/questions/{RUN}/regression/1060?test=T1", 400, "unknown test 'T1'; valid: T2"),
        (f"/compare?a={BEFORE}&b={RUN}&cell=a/b/c", 400, "unknown cell"),
        (f"/compare?a={RUN}&b={RUN}", 200, "The same run was chosen twice"),
        ("/models/fake-optimst", 404, "There is no model 'fake-optimst'."),
        ("/questions?run=fake-optimist-33", 404, "There is no run 'fake-optimist-33'."),
        ("/nights/2026-11-18T0131", 404, "There is no night '2026-11-18T0131'."),
        (f"/compare?a=fake-optimist-x&b={RUN}", 404, "There is no run 'fake-optimist-x'."),
        ("/runs?page=99", 404, "There is no page '99'."),
        ("/nights?page=99", 404, "There is no page '99'."),
        ("/questions?q=water&page=1000", 404, "There is no page '1,000'."),
        (f"/compare?a={BEFORE}&b={RUN}&page=99", 404, "There is no page '99'."),
        ("/nope", 404, ""),
        (f"/questions/{RUN}/mcq/99999999", 404, ""),
        (f"/questions/{RUN}/nope/1", 404, ""),
        ("/pictures/x/y", 404, ""),
        ("/models/..%2F..%2Fetc", 404, ""),
    ],
)
def test_what_does_not_fit_or_is_unknown_is_said(
    client: TestClient, page: str, status: int, said: str
) -> None:
    answer = client.get(page)
    assert (answer.status_code, said in text(answer.text)) == (status, True), text(answer.text)
    assert "Traceback" not in answer.text and 'lang="en"' in answer.text


@pytest.mark.parametrize(
    "nasty",
    [
        "' OR 1=1 --",
        "%'; DROP TABLE runs; --",
        "\x00",
        "</script><script>alert(1)</script>",
        "é\ud7ff",
    ],
)
def test_no_text_of_a_visitor_becomes_sql_or_markup(client: TestClient, nasty: str) -> None:
    for name in ("run", "model", "task", "country", "q"):
        answer = client.get("/questions", params={name: nasty})
        assert answer.status_code in (200, 400, 404) and "<script>alert" not in answer.text
    assert " 0 questions" in text(answer.text)
    assert "There is no finished run" not in client.get("/questions").text


def test_while_the_file_is_written_a_page_asks_again(served: Path, tmp_path: Path) -> None:
    path = copied(served, tmp_path / "r.duckdb")
    held = client_of(path, wait=0.1)
    with holding(path) as writer:  # another process
        answer = held.get("/runs")
        assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
        assert 'data-retry="5"' in answer.text and "being written" in text(answer.text)
        assert "Traceback" not in answer.text and str(tmp_path) not in answer.text
        assert held.get("/health").json()["results"] == "busy"
        writer.stdin.close()  # type: ignore[union-attr]
    assert held.get("/runs").status_code == 200


def test_the_states_of_the_registry_are_those_of_now(served: Path, tmp_path: Path) -> None:
    site = client_of(served, registry=tmp_path)
    for state in ("enabled", "candidate"):
        entry(tmp_path, "fake-optimist", state=state, reason="on trial")
        assert f"badge {state}" in site.get("/models").text


def test_a_new_run_is_seen_at_once(served: Path, tmp_path: Path) -> None:
    path = copied(served, tmp_path / "r.duckdb")
    client = client_of(path)
    assert "brand-new" not in client.get("/runs").text
    record = {"run_id": "brand-new-1", "model": "brand-new", "benchmark_id": "b"}
    store.publish(path, record | {"finished_at": "2026-11-20T01:00:00"}, {})
    assert "brand-new-1" in client.get("/runs").text
    assert client.get("/questions?run=brand-new-1").status_code == 200
    said = text(client.get("/models/brand-new").text)
    assert "measured" in said and intended_use()["summary"] in said


def test_without_results_pages_say_so(tmp_path: Path) -> None:
    path = tmp_path / "none.duckdb"
    client = client_of(path)
    answer = client.get("/")
    assert answer.status_code == 503 and "No results yet" in answer.text
    assert "sdgbias evaluate" in answer.text
    assert client.get("/health").json()["results"] == "missing"
    path.write_text("not a database")
    answer = client.get("/")
    assert answer.status_code == 500 and "not a DuckDB file" in answer.text
    assert "data-retry" not in answer.text
    path.unlink()
    with store.connect(path):
        pass
    for page in ("/", "/nights", "/numbers", "/models", "/questions", "/compare", "/runs"):
        assert client.get(page).status_code == 200, page
    assert "No night has been kept yet" in client.get("/").text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8321", 200),
        ("localhost", 200),
        ("[::1]:8321", 200),
        ("bias.example.org", 200),
        ("evil.example.org", 400),
        ("127.0.0.1.evil.org", 400),
    ],
)
def test_only_known_hosts_are_answered(served: Path, host: str, status: int) -> None:
    hosts = app.answers_to("127.0.0.1", ["bias.example.org"])
    client = TestClient(app.create(Site(Results(served)), hosts), base_url="http://127.0.0.1")
    answer = client.get("/runs", headers={"Host": host})
    assert answer.status_code == status
    assert "content-security-policy" in answer.headers


def test_the_hosts_that_are_answered() -> None:
    assert app.answers_to("10.0.0.7", []) == ["127.0.0.1", "localhost", "[::1]", "10.0.0.7"]
    for host, allowed in (("0.0.0.0", []), ("::", []), ("127.0.0.1", ["*"]), ("::1", ["http://x"])):
        with pytest.raises(UsageError, match="allowed-host"):
            app.answers_to(host, allowed)


def test_options_that_make_no_sense_are_refused_and_another_host_is_warned_of(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*options: object) -> Any:
        return CliRunner().invoke(command, ["serve", "--port", "0", *map(str, options)])

    started: list[str] = []
    close = lambda self, sockets: started.extend(s.close() or "" for s in sockets)  # noqa: E731
    monkeypatch.setattr(uvicorn.Server, "run", close)
    for more, said in {
        ("--host", "0.0.0.0"): "--allowed-host",
        ("--report", tmp_path / "none"): "no such folder",
        ("--wandb", "javascript:x"): "--wandb",
        ("--host", "203.0.113.1"): "choose another --port",
        ("--results", tmp_path): "name the results file in it",
    }.items():
        refusal = serve("--results", served, *more).exception
        assert isinstance(refusal, UsageError) and said in str(refusal)
    assert started == []
    opened = ("--host", "0.0.0.0", "--allowed-host", "bias.example.org")
    done = serve("--results", served, *opened)
    assert done.exit_code == 0 and "there is no login" in done.output and len(started) == 1
    printed = serve("--results", tmp_path / "later.duckdb").output
    assert "no results at" in printed and "http://127.0.0.1:" in printed
    assert "no login" not in printed


def test_people_have_pages_of_their_own(served: Path, tmp_path: Path) -> None:
    path = publish_persons(copied(served, tmp_path / "r.duckdb"))
    client = client_of(path)
    for page, words in {
        "/numbers?suite=people&metric=disparity": "Disparity, Full, p1, gender:male-female, all-52",
        "/models/unfair": "gender: male minus female",
        "/questions?run=unfair-0&gender=female": " 2 questions",
        "/questions?run=unfair-0&outcome=wrong": " 1 question",
        "/questions/unfair-0/choice/101": "read as nothing, declined",
        f"/compare?a=unfair-0&b={RUN}": "One run is of suite people",
    }.items():
        assert words in text(client.get(page).text), page
    model = text(client.get("/models/unfair").text)
    assert "Recall, direct question" in model and "Signature" not in model
    html = client.get("/questions/unfair-0/choice/101").text
    assert "Is there a nurse in the image?" in html and "help with that &lt;b&gt;" in html
    disparity = "/numbers?suite=people&metric=disparity"
    assert "+50.0 points" in text(client.get(disparity).text)
    (tmp_path / "rate").mkdir()
    rate = "UPDATE numbers SET metric = 'no_rate', value = -0.25 WHERE metric = 'disparity'"
    of_rate = client_of(altered(path, tmp_path / "rate", rate)).get(
        "/numbers?suite=people&metric=no_rate"
    )
    assert "Says no, Full, p1, gender:male-female" in text(of_rate.text)
    assert "−25.0 points" in text(of_rate.text)
    void = altered(path, tmp_path, "UPDATE numbers SET value = NULL, low = NULL, high = NULL")
    assert "none no interval" in text(client_of(void).get(disparity).text)


def test_a_report_is_shown_apart_from_these_pages(served: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<script>1</script>the report")
    (tmp_path.parent / "outside.txt").write_text("secret")
    client = client_of(served, report=tmp_path, wandb="https://wandb.example.org/r")
    front = client.get("/")
    assert 'href="/report/index.html"' in front.text
    assert 'href="https://wandb.example.org/r"' in front.text
    assert "default-src 'none'" in front.headers["content-security-policy"]
    for page in ("/report/index.html", "/overview"):
        policy = client.get(page).headers["content-security-policy"]
        assert policy.startswith("sandbox") and "allow-same-origin" not in policy
    for way in ("..", "%2e%2e"):
        assert client.get(f"/report/{way}/outside.txt").status_code == 404


def test_intervals_of_own_questions_name_the_column_that_they_are_clustered_by(
    served: Path, tmp_path: Path
) -> None:
    config = '{"own": {"cluster_by": "village"}}'
    path = altered(served, tmp_path, f"UPDATE runs SET suite = 'streets', config = '{config}'")
    client = client_of(path)
    for page in ("/numbers?suite=streets", f"/compare?a={BEFORE}&b={RUN}"):
        assert "clustered by village" in text(client.get(page).text), page
    assert "clustered by village" in publish_runs.load(path, RUN)["settings"]["interval"]

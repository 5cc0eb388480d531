-- Rows of the team's W&B Report (report/wandb/team_report.py). $runs: the runs it is about; $people:
-- those about people.

-- name: measured
SELECT model, suite, provenance, benchmark_id AS benchmark, left(coalesce(revision, ''), 12) AS revision,
       n_prompts_planned AS prompts, n_failed AS failed,
       strftime(finished_at, '%Y-%m-%d %H:%M UTC') AS finished, run_id AS run
FROM runs
WHERE list_contains($runs, run_id)
ORDER BY suite DESC, provenance = 'planted', model, benchmark_id

-- name: disparities
SELECT r.model, r.benchmark_id, m.test, m.pillar, m.value, m.n, m.ci_low, m.ci_high, m.clusters,
       coalesce(m.note, '') AS note
FROM metric_rows m JOIN runs r USING (run_id)
WHERE list_contains($people, run_id) AND m.metric = 'disparity' AND m.method = 'full'
      AND m.indicator = 'all-52' AND NOT ends_with(m.pillar, 'max-min')
ORDER BY ALL

-- name: history
WITH shown AS (SELECT DISTINCT night FROM night_outcomes ORDER BY night DESC LIMIT 14)
SELECT n.night, n.model, n.suite, n.outcome, coalesce(n.kind, '') AS kind,
       a.value, a.n::DOUBLE AS n, a.ci_low, a.ci_high, a.clusters
FROM night_outcomes n JOIN shown USING (night)
LEFT JOIN metric_rows a ON a.run_id = n.run_id AND a.task = 'mcq' AND a.test = 'all'
     AND a.method = 'full' AND a.pillar = 'all' AND a.indicator = 'all' AND a.metric = 'accuracy'
ORDER BY n.night DESC, n.model, n.suite

-- name: verdicts
SELECT * REPLACE (coalesce(quarantines, false) AS quarantines, coalesce(required, false) AS required,
                  coalesce(side, '') AS side)
FROM verdicts
WHERE night = (SELECT max(night) FROM verdicts)
ORDER BY verdict <> 'BREACH', model, rule, task, test, method, level, side, metric

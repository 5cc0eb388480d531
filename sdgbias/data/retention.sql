-- What store/maintenance.py asks of a results file.

-- name: counts
SELECT count(*) AS runs, count(DISTINCT model) AS models,
       min(finished_at) AS oldest, max(finished_at) AS newest,
       (SELECT count(*) FROM nights) AS nights,
       (SELECT count(DISTINCT run_id) FROM details WHERE dropped_at IS NOT NULL) AS dropped
FROM runs

-- name: sizes
SELECT "table", sum("rows")::BIGINT AS "rows", count(*) AS files, sum(bytes)::BIGINT AS bytes
FROM details WHERE dropped_at IS NULL GROUP BY 1 ORDER BY 1

-- name: kept
-- Reasons to keep details, in the order of reports. A night is a row of `nights`; a day (UTC) on
-- which a run was finished by hand counts as one.
WITH days AS (
    SELECT finished_at::DATE AS day FROM runs WHERE finished_at IS NOT NULL
    UNION SELECT started_at::DATE FROM nights
), cut AS (SELECT min(day) AS first FROM (FROM days ORDER BY day DESC LIMIT $nights)
), late AS (SELECT night FROM nights, cut WHERE started_at::DATE >= first
), judged AS (  -- what the newest verdicts on each model compare
    SELECT run_id, baseline FROM verdicts
    QUALIFY starts_with(night, 'run:')  -- by hand
            OR night = max(night) FILTER (NOT starts_with(night, 'run:')) OVER (PARTITION BY model, suite)
), ranked AS (
    SELECT run_id, model, suite, finished_at,
           row_number() OVER (PARTITION BY model, suite
                              ORDER BY finished_at DESC, run_id DESC) AS place,
           row_number() OVER (PARTITION BY model, suite, date_trunc('month', finished_at)
                              ORDER BY finished_at DESC, run_id DESC) AS monthly
    FROM runs
), sizes AS (
    SELECT run_id, sum(bytes)::BIGINT AS bytes, count(*) AS files
    FROM details WHERE dropped_at IS NULL GROUP BY 1
)
SELECT r.run_id, model, suite, finished_at, bytes, files, CASE
    WHEN finished_at IS NULL THEN 'not finished'
    WHEN place = 1 THEN 'newest of its model'
    WHEN run_id IN (SELECT run_id FROM judged)
        OR run_id IN (SELECT baseline FROM judged WHERE baseline IS NOT NULL) THEN 'newest verdicts'
    WHEN run_id IN (SELECT run_id FROM accepted) THEN 'accepted'
    WHEN finished_at::DATE >= (SELECT first FROM cut) THEN 'recent night'
    WHEN run_id IN (
        SELECT run_id FROM night_outcomes WHERE night IN (SELECT night FROM late) AND run_id IS NOT NULL
    ) THEN 'recent night'
    WHEN place <= $per_model THEN 'one of the last of its model'
    WHEN monthly = 1 THEN 'one a month'
    ELSE '' END AS kept
FROM ranked r JOIN sizes USING (run_id) ORDER BY finished_at, r.run_id

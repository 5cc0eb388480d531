-- Nights (analysis/nights.py), where a missing text is '' and a missing number 0, and the answers
-- that nightly/regression compares. verdicts: an unchanged run in breach is shown as in the night
-- that found it.

-- name: models
SELECT night, model, suite,
       coalesce(COLUMNS('^(outcome|run_id|kind|message|log)$'), ''),
       coalesce(COLUMNS('^(attempts|scored|planned)$'), 0),
       coalesce(seconds, 'nan') AS seconds,
       coalesce(quarantined_until, '') AS until,
       coalesce(run_id IN (SELECT run_id FROM runs WHERE provenance = 'planted'), false) AS planted,
       coalesce((SELECT last(reason) FROM accepted WHERE run_id = m.run_id), '') AS accepted
FROM night_outcomes m
WHERE night = $night
ORDER BY model, suite

-- name: verdicts
SELECT * REPLACE (coalesce(quarantines, false) AS quarantines, coalesce(baseline, '') AS baseline,
                  coalesce(required, false) AS required, coalesce(side, '') AS side)
FROM verdicts
WHERE night = $night
   OR (rule <> $unchanged AND run_id IN (
         SELECT run_id FROM verdicts
         WHERE night = $night AND rule = $unchanged AND verdict = 'BREACH'))
ORDER BY rowid

-- name: history
SELECT m.night, m.model, m.suite, m.outcome,
       coalesce(bool_or(v.verdict = 'BREACH'), false) AS breach,
       coalesce(bool_or(v.verdict IS NOT NULL), false) AS judged
FROM night_outcomes m
LEFT JOIN verdicts v ON v.night = m.night AND v.model = m.model AND v.suite = m.suite
WHERE list_contains($nights, m.night)
GROUP BY ALL
ORDER BY m.model, m.suite, m.night

-- name: people
SELECT p.task, p.test, p.method, p.correct, s.how, c.mass, i.item_id, i.image_id, i.class1,
       i.asked, i.prompt, i.negative, i.gold, i.gender, i.skin, i.age
FROM predictions p
JOIN people i ON i.benchmark_id = $benchmark AND i.item_id = p.item_id
LEFT JOIN (SELECT item_id, test, any_value(how) AS how FROM spoken
           WHERE run_id = $run GROUP BY ALL) s
       ON s.item_id = p.item_id AND s.test = p.test AND p.method = 'full'
LEFT JOIN (SELECT item_id, test, "view", any_value(mass) AS mass FROM scores
           WHERE run_id = $run GROUP BY ALL) c
       ON c.item_id = p.item_id AND c.test = p.test AND c."view" = p.method
WHERE p.run_id = $run
ORDER BY p.task, p.test, p.method, i.item_id

-- name: generated
SELECT p.task, p.item_id, p.test, p.method, p.pred, p.correct, p."error", d.parsed
FROM predictions p
LEFT JOIN decoded d ON d.run_id = p.run_id AND d.item_id = p.item_id
       AND d.test = p.test AND d."view" = p.method
WHERE p.run_id = $run AND p.split = 'test'
      AND (p.task = 'regression' OR ends_with(p.method, $suffix))
ORDER BY p.task, p.test, p.method, p.item_id

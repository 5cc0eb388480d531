-- Questions of a suite of custom questions: their id in the author's table, and the levels of the group columns. NULL in other
-- suites, and in benchmarks that were evaluated by an earlier version.
-- Closing steps of a night: how each ended, beside the sentence that says why; filled once from the sentences of then.

ALTER TABLE items ADD COLUMN source_id VARCHAR;
ALTER TABLE items ADD COLUMN groups JSON;                              -- group column -> level
ALTER TABLE nights ADD COLUMN step_states JSON;                        -- step -> 'done' | 'breach' | 'failed'
UPDATE nights SET step_states = (
    SELECT json_group_object(step, CASE WHEN said = 'done' THEN 'done'
                                        WHEN starts_with(said, 'breach') THEN 'breach' ELSE 'failed' END)
    FROM (SELECT unnest(json_keys(steps)) AS step) s, LATERAL (SELECT json_extract_string(steps, '$."' || step || '"') AS said) t
) WHERE steps IS NOT NULL;

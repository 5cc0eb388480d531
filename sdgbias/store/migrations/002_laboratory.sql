-- What the laboratory needs to work from the results alone: labels of the items, bounds of censored scores, decoded numbers,
-- and one long table for every analysis beyond the headline metrics.

ALTER TABLE items ADD COLUMN target VARCHAR;                           -- regression label column, '' for multiple choice
ALTER TABLE items ADD COLUMN tolerance DOUBLE;
ALTER TABLE items ADD COLUMN wealth VARCHAR;                           -- 'poorest' | 'middle' | 'richest' | '': tercile of the asset index
ALTER TABLE scores ADD COLUMN upper FLOAT[];                           -- NULL: all exact; else upper bounds where a logit is censored

-- regression: the freely generated number of every view (0.0 and not parsed when it states none), and for Full the number
-- that each first digit leads to
CREATE TABLE decoded (
    run_id VARCHAR NOT NULL, item_id BIGINT, test VARCHAR, "view" VARCHAR, free DOUBLE, parsed BOOLEAN, by_digit DOUBLE[]
);

CREATE TABLE study_rows (
    run_id VARCHAR NOT NULL, study VARCHAR, task VARCHAR, test VARCHAR, method VARCHAR, pillar VARCHAR, indicator VARCHAR,
    "by" VARCHAR, level VARCHAR, x DOUBLE, metric VARCHAR, "value" DOUBLE, n BIGINT, ci_low DOUBLE, ci_high DOUBLE, p DOUBLE,
    note VARCHAR
);

-- The public face: the same 13 columns; debiasing methods beside the views and CADE.
CREATE OR REPLACE VIEW metrics AS
SELECT run_id, model, suite, task, test, method, pillar, indicator, metric, "value", n, ci_low, ci_high FROM metric_rows
UNION ALL
SELECT run_id, model, suite, task, test, method, pillar, indicator, metric, "value", n, ci_low, ci_high
FROM study_rows JOIN runs USING (run_id) WHERE study = 'methods';

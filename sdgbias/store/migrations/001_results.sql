-- One row per run, and the tables that hang from it. No primary keys: they cost 7x time and 6x space on DuckDB 2.0;
-- store.publish() replaces rows by key inside one transaction instead.

CREATE TABLE runs (
    run_id VARCHAR NOT NULL, suite VARCHAR, model VARCHAR NOT NULL, title VARCHAR, backend VARCHAR, revision VARCHAR,
    fingerprint VARCHAR, benchmark_id VARCHAR, benchmark_path VARCHAR, licence VARCHAR,
    started_at TIMESTAMP, finished_at TIMESTAMP,                       -- UTC
    seed BIGINT, numerics VARCHAR, n_prompts_naive BIGINT, n_prompts_planned BIGINT,
    n_scored BIGINT, n_cached BIGINT, n_failed BIGINT, config JSON,
    provenance VARCHAR                                                 -- 'measured' | 'planted'
);

CREATE TABLE items (
    benchmark_id VARCHAR NOT NULL, task VARCHAR, item_id BIGINT, cluster_id VARCHAR, country VARCHAR, year INTEGER,
    urban VARCHAR, pillar VARCHAR, indicator VARCHAR, indicator_title VARCHAR, unit VARCHAR, question VARCHAR,
    options JSON, gold VARCHAR, gold_value DOUBLE, split VARCHAR, polarity VARCHAR, image_id VARCHAR, context JSON
);

CREATE TABLE scores (
    run_id VARCHAR NOT NULL, task VARCHAR, item_id BIGINT, test VARCHAR, "view" VARCHAR, logits FLOAT[],
    candidates VARCHAR, mass DOUBLE, minus_logit DOUBLE, top_token VARCHAR, n_tokens BIGINT
);

CREATE TABLE predictions (
    run_id VARCHAR NOT NULL, task VARCHAR, item_id BIGINT, test VARCHAR, method VARCHAR, split VARCHAR, pred VARCHAR,
    "value" DOUBLE, correct BOOLEAN, "error" DOUBLE, confidence DOUBLE, kl DOUBLE, kept BOOLEAN
);

CREATE TABLE cade_params (
    run_id VARCHAR NOT NULL, task VARCHAR, test VARCHAR, alpha DOUBLE, lambda_kl DOUBLE, beta DOUBLE, tau DOUBLE,
    mode VARCHAR, objective VARCHAR, val_value DOUBLE, n_val BIGINT, n_draws BIGINT, seed BIGINT
);

CREATE TABLE metric_rows (
    run_id VARCHAR NOT NULL, model VARCHAR, suite VARCHAR, task VARCHAR, test VARCHAR, method VARCHAR, pillar VARCHAR,
    indicator VARCHAR, metric VARCHAR, "value" DOUBLE, n BIGINT, ci_low DOUBLE, ci_high DOUBLE
);

CREATE TABLE failures (run_id VARCHAR NOT NULL, "key" VARCHAR, kind VARCHAR, message VARCHAR);

CREATE TABLE quarantine (
    benchmark_id VARCHAR NOT NULL, "table" VARCHAR, "key" VARCHAR, rule VARCHAR, detail VARCHAR
);

CREATE TABLE previews (benchmark_id VARCHAR NOT NULL, image_id VARCHAR, png BLOB);

-- The public face of the results: exactly these 13 columns, in this order.
CREATE VIEW metrics AS
SELECT run_id, model, suite, task, test, method, pillar, indicator, metric, "value", n, ci_low, ci_high FROM metric_rows;

-- What happened night after night: who was asked, what came of it, how the gate judged it, and who was told.

CREATE TABLE nights (
    night VARCHAR NOT NULL,                                            -- local wall clock of the (scheduled) start: 2026-11-21T0130
    scheduled_for TIMESTAMP, started_at TIMESTAMP, finished_at TIMESTAMP, -- UTC
    "by" VARCHAR,                                                      -- 'cli' | 'prefect'
    status VARCHAR,                                                    -- 'running' | 'done' | 'failed' | 'interrupted'
    benchmark_id VARCHAR, people_id VARCHAR, config JSON,
    steps JSON,                                                        -- step -> 'done' or the reason it failed
    report VARCHAR
);

CREATE TABLE night_models (
    night VARCHAR NOT NULL, model VARCHAR NOT NULL, suite VARCHAR NOT NULL,
    outcome VARCHAR,                                                   -- 'published' | 'unchanged' | 'failed' | 'skipped'
    run_id VARCHAR, "key" VARCHAR,                                     -- key: identity of the job (entry, benchmark, settings)
    attempts BIGINT, kind VARCHAR, message VARCHAR,                    -- kind: class of the last error, '' when none
    seconds DOUBLE, scored BIGINT, planned BIGINT, failed BIGINT,
    started_at TIMESTAMP, finished_at TIMESTAMP,
    quarantined_until VARCHAR,                                         -- ISO date, '' when not quarantined
    log VARCHAR                                                        -- path relative to the results' folder
);

CREATE TABLE verdicts (
    night VARCHAR NOT NULL, model VARCHAR NOT NULL, suite VARCHAR NOT NULL, run_id VARCHAR, baseline VARCHAR,
    rule VARCHAR NOT NULL, task VARCHAR, test VARCHAR, method VARCHAR, level VARCHAR, metric VARCHAR,
    verdict VARCHAR,                                                   -- 'PASS' | 'BREACH' | 'INSUFFICIENT_EVIDENCE' | 'MISSING'
    "before" DOUBLE, "value" DOUBLE, change DOUBLE, ci_low DOUBLE, ci_high DOUBLE, n BIGINT, p DOUBLE,
    mde DOUBLE, allowed DOUBLE, note VARCHAR
);

CREATE TABLE flips (
    night VARCHAR NOT NULL, model VARCHAR NOT NULL, suite VARCHAR NOT NULL, run_id VARCHAR, baseline VARCHAR,
    task VARCHAR, test VARCHAR, method VARCHAR, item_id BIGINT, gold VARCHAR, was VARCHAR, now VARCHAR, better BOOLEAN
);

CREATE TABLE accepted (                                                -- breaches that a person looked at and accepted
    run_id VARCHAR NOT NULL, accepted_at TIMESTAMP, reason VARCHAR
);

CREATE TABLE announcements (
    night VARCHAR NOT NULL, target VARCHAR NOT NULL, status VARCHAR, attempts BIGINT, message VARCHAR, sent_at TIMESTAMP
);

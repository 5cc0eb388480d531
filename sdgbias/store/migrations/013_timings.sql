-- The time of a run by task, kind of work and view (scoring/timing.py); nothing for runs of earlier versions.

CREATE TABLE timings (
    run_id VARCHAR NOT NULL, task VARCHAR, phase VARCHAR,              -- phase: 'score' | 'decode' | 'force'
    "view" VARCHAR, "pass" VARCHAR,                                    -- pass: of extra prompts, '' for the suite's views
    cells BIGINT, prompts BIGINT, cached BIGINT, untimed BIGINT, tokens BIGINT,
    seconds DOUBLE, seconds_measured DOUBLE, seconds_alone DOUBLE
);

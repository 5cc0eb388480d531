-- The whole schema of a results file. No primary keys: they cost 7x time and 6x space on DuckDB 2.0; store.publish() replaces rows by
-- key inside one transaction instead. Any change here raises database.SCHEMA, which table schema_version holds. What tables and columns
-- hold is said in comments.yaml, which becomes COMMENT ON in every file.

CREATE TABLE runs (                                                    -- one row per run
    run_id VARCHAR NOT NULL, suite VARCHAR, model VARCHAR NOT NULL, title VARCHAR, backend VARCHAR, revision VARCHAR,
    fingerprint VARCHAR, benchmark_id VARCHAR, benchmark_path VARCHAR, licence VARCHAR,
    started_at TIMESTAMP, finished_at TIMESTAMP,                       -- UTC
    seed BIGINT, numerics VARCHAR, n_prompts_naive BIGINT, n_prompts_planned BIGINT,
    n_scored BIGINT, n_cached BIGINT, n_failed BIGINT, config JSON,
    provenance VARCHAR                                                 -- 'measured' | 'planted'
);

CREATE TABLE cade_params (
    run_id VARCHAR NOT NULL, task VARCHAR, test VARCHAR, alpha DOUBLE, lambda_kl DOUBLE, beta DOUBLE, tau DOUBLE,
    mode VARCHAR, objective VARCHAR, val_value DOUBLE, n_val BIGINT, n_draws BIGINT, seed BIGINT, note VARCHAR
);

CREATE TABLE numbers (                                                 -- every number of a run: headline metrics, and studies
    run_id VARCHAR NOT NULL, study VARCHAR,                            -- study 'headline': the metrics that the run was published with
    task VARCHAR, test VARCHAR, method VARCHAR,
    versus VARCHAR,                                                    -- of a difference: what is taken off `method`
    attribute VARCHAR, "group" VARCHAR, other VARCHAR,                 -- 'pillar', 'Human Capital', ''; 'gender', 'male', 'female': a difference
    indicator VARCHAR,
    parameter VARCHAR, x DOUBLE,                                       -- 'alpha', 0.5; 'coverage', 0.05; 'classes', 52
    metric VARCHAR, "value" DOUBLE, n BIGINT,
    clusters BIGINT,                                                   -- what the interval counts: places, pictures or prompts
    low DOUBLE, high DOUBLE, p DOUBLE, p_adjusted DOUBLE,
    missing_reason VARCHAR,                                            -- why there is no value: 'no answer understood', 'fewer than 20'
    note VARCHAR                                                       -- e.g. 'too few places'
);

CREATE TABLE analyses (                                                -- what `sdgbias analyse` has computed of a run, and with which settings
    run_id VARCHAR NOT NULL, settings JSON
);

CREATE TABLE failures (run_id VARCHAR NOT NULL, "key" VARCHAR, kind VARCHAR, message VARCHAR);

CREATE TABLE timings (                                                 -- by task, kind of work and view (scoring/timing.py)
    run_id VARCHAR NOT NULL, task VARCHAR, phase VARCHAR,              -- phase: 'score' | 'decode' | 'force'
    "view" VARCHAR, "pass" VARCHAR,                                    -- pass: of extra prompts, '' for the suite's views
    cells BIGINT, prompts BIGINT, cached BIGINT, untimed BIGINT, tokens BIGINT,
    seconds DOUBLE, seconds_measured DOUBLE, seconds_alone DOUBLE
);

-- The questions of a row as one name: 'all', a pillar, 'gender=male', 'gender:male-female' (a difference), 'gender=male & age=old'.
CREATE MACRO pillar_of(attribute, named, other) AS
    CASE WHEN attribute = '' THEN 'all' WHEN attribute = 'pillar' THEN named
         WHEN contains(attribute, ' x ') AND contains(named, ' x ') THEN
             concat(split_part(attribute, ' x ', 1), '=', split_part(named, ' x ', 1), ' & ',
                    split_part(attribute, ' x ', 2), '=', split_part(named, ' x ', 2))
         WHEN other = '' THEN concat(attribute, '=', named) ELSE concat(attribute, ':', named, '-', other) END;

-- The public face of the results: exactly these 13 columns, in this order; debiasing methods beside the views and CADE.
CREATE VIEW metrics AS
SELECT run_id, model, suite, task, test, method, pillar_of(attribute, "group", other) AS pillar,
       if(parameter = 'classes' AND x = 52, 'all-52', indicator) AS indicator,
       metric, "value", n, low AS ci_low, high AS ci_high
FROM numbers JOIN runs USING (run_id) WHERE study IN ('headline', 'methods');

-- The big tables of runs are Parquet files beside this file, of exactly these columns; `details` is their catalogue.
CREATE SCHEMA detail;
CREATE TABLE detail.scores (
    run_id VARCHAR, task VARCHAR, item_id BIGINT, test VARCHAR, "view" VARCHAR, logits FLOAT[], candidates VARCHAR,
    mass DOUBLE, minus_logit DOUBLE, top_token VARCHAR, n_tokens BIGINT,
    upper FLOAT[]                                                      -- NULL: all exact; else upper bounds where a logit is censored
);
CREATE TABLE detail.predictions (
    run_id VARCHAR, task VARCHAR, item_id BIGINT, test VARCHAR, method VARCHAR, split VARCHAR, pred VARCHAR,
    "value" DOUBLE, correct BOOLEAN, "error" DOUBLE, confidence DOUBLE, kl DOUBLE, kept BOOLEAN
);
CREATE TABLE detail.decoded (                                          -- regression: the freely generated number of every view (0.0
    run_id VARCHAR, item_id BIGINT, test VARCHAR, "view" VARCHAR,      -- and not parsed when it states none), and for Full the
    free DOUBLE, parsed BOOLEAN, by_digit DOUBLE[]                     -- number that each first digit leads to
);
CREATE TABLE detail.spoken (                                           -- generated text, and how it was read
    run_id VARCHAR, task VARCHAR, item_id BIGINT, test VARCHAR, "view" VARCHAR, text VARCHAR, label VARCHAR, how VARCHAR,
    similarity DOUBLE
);
CREATE TABLE details (
    run_id VARCHAR NOT NULL, "table" VARCHAR NOT NULL,
    file VARCHAR NOT NULL,                                             -- run_id=<run>/<table>-<hash>.parquet
    "rows" BIGINT, bytes BIGINT, sha256 VARCHAR,
    dropped_at TIMESTAMP,                                              -- UTC; removed by retention, the run's metrics remain
    written_ns BIGINT                                                  -- time of modification, ns since 1970; a file that has another
);                                                                     -- is compared with its digest before it is read

CREATE TABLE items (
    benchmark_id VARCHAR NOT NULL, task VARCHAR, item_id BIGINT, cluster_id VARCHAR, country VARCHAR, year INTEGER,
    urban VARCHAR, pillar VARCHAR, indicator VARCHAR, indicator_title VARCHAR, unit VARCHAR, question VARCHAR,
    options JSON, gold VARCHAR, gold_value DOUBLE, split VARCHAR, polarity VARCHAR, image_id VARCHAR, context JSON,
    target VARCHAR, tolerance DOUBLE,                                  -- target: regression label column, '' for multiple choice
    wealth VARCHAR,                                                    -- 'poorest' | 'middle' | 'richest' | '': tercile of the asset index
    source_id VARCHAR, groups JSON,                                    -- custom questions: id in the author's table, group column -> level
    modalities VARCHAR                                                 -- 'photo, tile, nightlights'; NULL: own suites
);

CREATE TABLE people (                                                  -- who is asked about: perceived, annotated groups
    benchmark_id VARCHAR NOT NULL, item_id BIGINT, person_id VARCHAR, image_id VARCHAR, dataset VARCHAR, class1 VARCHAR, asked VARCHAR,
    prompt VARCHAR, negative BOOLEAN, gold VARCHAR, gender VARCHAR, skin VARCHAR, age VARCHAR, race VARCHAR, split VARCHAR
);

-- Every question, whatever its suite. What it is about is in `attributes`, where it is known: pillar, country, urban, wealth, photo of a
-- place; gender, skin, age, race, class of a person; the group columns of own questions. content_key is equal for questions that were asked
-- word for word the same, also on another benchmark; questions with one prompt_key share the prompt of a view without picture and value.
CREATE VIEW questions AS
WITH suites AS (SELECT benchmark_id, min(suite) AS suite FROM runs GROUP BY 1)
SELECT benchmark_id, suite, task, item_id, cluster_id, image_id, question, options, gold, gold_value, split, tolerance, indicator, polarity,
       if(source_id IS NULL,
          map_from_entries(list_filter(
              [('pillar', pillar), ('country', country), ('urban', urban), ('wealth', wealth),
               ('photo', CASE WHEN coalesce(modalities, '') = '' THEN '' WHEN starts_with(modalities, 'photo') THEN 'with photo'
                         ELSE 'without photo' END)],
              lambda entry: coalesce(entry[2], '') <> '')),
          coalesce(groups::MAP(VARCHAR, VARCHAR), MAP {})) AS attributes,
       coalesce(source_id, indicator_title) AS about, false AS negative,
       md5(concat_ws(chr(31), item_id, gold, gold_value, question, options::VARCHAR,
                     if(source_id IS NULL, '', concat_ws(chr(31), image_id, context::VARCHAR)))) AS content_key,
       md5(concat_ws(chr(31), question, options::VARCHAR)) AS prompt_key
FROM items JOIN suites USING (benchmark_id)
UNION ALL BY NAME
SELECT benchmark_id, suite, if("prompt" = 'p1', 'direct', 'choice') AS task, item_id, image_id AS cluster_id, image_id, asked AS question,
       gold, split,
       map_from_entries(list_filter(
           [('gender', gender), ('skin', skin), ('age', age), ('race', race), ('class', class1)],
           lambda entry: coalesce(entry[2], '') <> '')) AS attributes,
       coalesce(nullif(asked, ''), class1) AS about, coalesce(negative, false) AS negative,
       md5(concat_ws(chr(31), item_id, image_id, "prompt", asked, negative, gold)) AS content_key,
       md5(asked) AS prompt_key
FROM people JOIN suites USING (benchmark_id);

-- What errors of an answer are clustered by: the prompt where it holds neither a picture nor a value of the place, else the cluster.
CREATE MACRO unit_of(method, test, prompt_key, cluster_id) AS
    if(starts_with(method, 'q_only') OR (starts_with(method, 'ctx_q') AND test NOT IN ('T1', 'T2')), prompt_key, cluster_id);

CREATE VIEW latest_run AS                                              -- the newest finished run of each model on each benchmark
SELECT * FROM runs WHERE finished_at IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY model, suite, benchmark_id ORDER BY finished_at DESC, run_id DESC) = 1;

CREATE TABLE previews (                                                -- run_id: the first run that contains the picture
    benchmark_id VARCHAR NOT NULL, image_id VARCHAR, png BLOB, run_id VARCHAR
);

CREATE TABLE quarantine (
    benchmark_id VARCHAR NOT NULL, "table" VARCHAR, "key" VARCHAR, rule VARCHAR, detail VARCHAR
);

CREATE TABLE verdicts (
    night VARCHAR NOT NULL, model VARCHAR NOT NULL, suite VARCHAR NOT NULL, run_id VARCHAR, baseline VARCHAR,
    rule VARCHAR NOT NULL, task VARCHAR, test VARCHAR, method VARCHAR, level VARCHAR, metric VARCHAR,
    verdict VARCHAR,                                                   -- 'PASS' | 'BREACH' | 'INSUFFICIENT_EVIDENCE' | 'MISSING'
    "before" DOUBLE, "value" DOUBLE, change DOUBLE, ci_low DOUBLE, ci_high DOUBLE, n BIGINT, p DOUBLE,
    mde DOUBLE, allowed DOUBLE, note VARCHAR,
    side VARCHAR,                                                      -- 'at_least' | 'at_most': a bound of the value itself; '' a change
    quarantines BOOLEAN,                                               -- a breach of a rule with `then: quarantine`
    required BOOLEAN                                                   -- MISSING, of a rule that requires its metric
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

-- The second suite: who is asked about (perceived, annotated groups), and what models said, read and unread.

CREATE TABLE people (
    benchmark_id VARCHAR NOT NULL, item_id BIGINT, person_id VARCHAR, image_id VARCHAR, dataset VARCHAR, class1 VARCHAR, asked VARCHAR,
    prompt VARCHAR, negative BOOLEAN, gold VARCHAR, gender VARCHAR, skin VARCHAR, age VARCHAR, race VARCHAR, split VARCHAR
);

CREATE TABLE spoken (
    run_id VARCHAR NOT NULL, task VARCHAR, item_id BIGINT, test VARCHAR, "view" VARCHAR, text VARCHAR, label VARCHAR, how VARCHAR,
    similarity DOUBLE
);

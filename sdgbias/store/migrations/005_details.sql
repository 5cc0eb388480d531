-- The big tables of runs lie in Parquet files (sdgbias/details); this file keeps their catalogue. What older versions kept as rows is
-- moved out run by run after this script (store.database._move_details), and the old tables are dropped when they are empty.

CREATE TABLE details (
    run_id VARCHAR NOT NULL, "table" VARCHAR NOT NULL,
    file VARCHAR NOT NULL,                                             -- run_id=<run>/<table>-<hash>.parquet
    "rows" BIGINT, bytes BIGINT, sha256 VARCHAR,
    "columns" INTEGER,                                                 -- how many the file has: a later schema adds some
    dropped_at TIMESTAMP                                               -- UTC; removed by retention, the run's metrics remain
);

-- Empty tables: the columns and types that files of details have (older files lack the newer columns: NULL).
CREATE SCHEMA detail;
CREATE TABLE detail.scores AS FROM scores LIMIT 0;
CREATE TABLE detail.predictions AS FROM predictions LIMIT 0;
CREATE TABLE detail.decoded AS FROM decoded LIMIT 0;
CREATE TABLE detail.spoken AS FROM spoken LIMIT 0;

-- Which run brought a picture first ('': not known), so that a report of an earlier night shows the pictures of then.
ALTER TABLE previews ADD COLUMN run_id VARCHAR;
UPDATE previews SET run_id = '';

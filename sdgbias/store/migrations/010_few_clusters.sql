-- What an interval counts (places, pictures or distinct prompts), and what a reader has to know of a row: 'too few places',
-- 'tuned on fewer than 50 val rows'. NULL in rows of earlier versions, whose image-free shares counted places.

ALTER TABLE metric_rows ADD COLUMN clusters BIGINT;
ALTER TABLE metric_rows ADD COLUMN note VARCHAR;
ALTER TABLE headline_rows ADD COLUMN clusters BIGINT;
ALTER TABLE headline_rows ADD COLUMN note VARCHAR;
ALTER TABLE cade_params ADD COLUMN note VARCHAR;

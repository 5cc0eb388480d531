-- When a file of details was written (its time of modification, ns since 1970): a file that has another time is compared with its
-- digest before it is read (parquet.fault). NULL: not known.

ALTER TABLE details ADD COLUMN written_ns BIGINT;

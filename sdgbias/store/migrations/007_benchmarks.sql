-- The benchmarks of a night: one of each suite that a model was asked, however many suites there are.

ALTER TABLE nights ADD COLUMN benchmarks JSON;                         -- suite -> benchmark_id
UPDATE nights SET benchmarks = json_merge_patch(
    CASE WHEN coalesce(benchmark_id, '') <> '' THEN json_object('sdg', benchmark_id) ELSE '{}' END,
    CASE WHEN coalesce(people_id, '') <> '' THEN json_object('people', people_id) ELSE '{}' END);
ALTER TABLE nights DROP COLUMN benchmark_id;
ALTER TABLE nights DROP COLUMN people_id;

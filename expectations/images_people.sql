-- Rules of images_people.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- person-known (gate, needs people): the picture's person (cluster_id) must be in people.parquet
cluster_id IN (SELECT person_id FROM people);

-- image-of-person (gate, needs people): image_id must be the person's
(cluster_id, image_id) IN (SELECT person_id, image_id FROM people);

-- one-part (gate): a person is asked about with one picture
n_parts = 1 AND n_photos = 1;

-- image-stored (gate, needs stored): the shard named must hold the picture as the index has it
stored;

-- image-id-is-sha256 (gate, needs stored): image_id is the digest of the stored bytes
id_is_sha256;

-- image-is-whole (warn, needs stored): a stored picture begins and ends as a PNG or JPEG
is_whole;

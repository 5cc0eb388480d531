-- Rules of images_own.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- image-used (gate, needs items_own): a stored picture belongs to a question
image_id IN (SELECT image_id FROM items_own);

-- one-part (gate): a question shows one picture
n_parts = 1 AND n_photos = 1;

-- image-stored (gate, needs stored): the shard named must hold the picture as the index has it
stored;

-- image-id-is-sha256 (gate, needs stored): image_id is the digest of the stored bytes
id_is_sha256;

-- image-is-whole (warn, needs stored): a stored picture begins and ends as a PNG or JPEG
is_whole;

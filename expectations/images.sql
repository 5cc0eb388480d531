-- Rules of images.parquet that span columns, rows or tables (CONTRIBUTING.md).

CREATE MACRO with_photo(shown) AS (shown = '' OR starts_with(shown, 'photo'));

-- image-cluster-exists (gate, needs clusters): the image's cluster must be in clusters.parquet
cluster_id IN (SELECT cluster_id FROM clusters);

-- pending-all-or-none (gate): a benchmark has pictures for all of its rows or for none
(SELECT count(DISTINCT starts_with(image_id, 'pending:')) FROM rows) = 1;

-- photo-id-present (quarantine, needs pictures, own build): a picture has the id of its street
-- photo where it shows one, and only there
(photo_id <> '') = with_photo(modalities);

-- photo-count (quarantine, needs pictures): a picture that shows a photo has at least one
n_photos >= 1 OR NOT with_photo(modalities);

-- part-count (quarantine, needs pictures): an image needs at least one picture
n_parts >= 1;

-- modalities-known (quarantine, needs pictures, own build): a picture shows a tile, and before and
-- after it a photo and nightlights where it has them
regexp_full_match(modalities, '(photo, )?tile(, nightlights)?');

-- tile-hash-format (quarantine, needs pictures): tile_hash is 16 hex digits
regexp_full_match(tile_hash, '([0-9a-f]{16})?');

-- photo-hash-format (quarantine, needs pictures): photo_hash is 16 hex digits
regexp_full_match(photo_hash, '([0-9a-f]{16})?');

-- photo-hash-present (quarantine, needs pictures, own build): photo_hash is there where the picture
-- shows a photo, and only there
(photo_hash <> '') = with_photo(modalities);

-- image-group-known (gate): image_group is the image_id of the row that leads the group
image_group IN (SELECT image_id FROM rows WHERE image_id = image_group);

-- image-stored (gate, needs pictures, stored): the picture must lie in its shard, with the ids,
-- counts and hashes of the index
stored;

-- image-id-is-sha256 (gate, needs pictures, stored): image_id must be the sha256 of the stored
-- bytes
id_is_sha256;

-- image-is-whole (quarantine, needs pictures, stored): every stored picture must be a whole PNG or
-- JPEG
is_whole;

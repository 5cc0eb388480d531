-- Rules of clusters.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- SustainBench's 56 DHS countries: DHS code, ISO 3166 alpha-3, UN M49, official split
CREATE TEMP TABLE listed AS FROM (VALUES
    ('AL', 'ALB', '8', 'train'), ('BD', 'BGD', '50', 'train'), ('CD', 'COD', '180', 'train'),
    ('CM', 'CMR', '120', 'train'), ('GH', 'GHA', '288', 'train'), ('GU', 'GTM', '320', 'train'),
    ('HN', 'HND', '340', 'train'), ('IA', 'IND', '356', 'train'), ('ID', 'IDN', '360', 'train'),
    ('JO', 'JOR', '400', 'train'), ('KE', 'KEN', '404', 'train'), ('KM', 'COM', '174', 'train'),
    ('LB', 'LBR', '430', 'train'), ('LS', 'LSO', '426', 'train'), ('MA', 'MAR', '504', 'train'),
    ('MB', 'MDA', '498', 'train'), ('MD', 'MDG', '450', 'train'), ('MM', 'MMR', '104', 'train'),
    ('MW', 'MWI', '454', 'train'), ('MZ', 'MOZ', '508', 'train'), ('NG', 'NGA', '566', 'train'),
    ('NI', 'NER', '562', 'train'), ('PE', 'PER', '604', 'train'), ('PH', 'PHL', '608', 'train'),
    ('SN', 'SEN', '686', 'train'), ('TG', 'TGO', '768', 'train'), ('TJ', 'TJK', '762', 'train'),
    ('UG', 'UGA', '800', 'train'), ('ZM', 'ZMB', '894', 'train'), ('ZW', 'ZWE', '716', 'train'),
    ('BF', 'BFA', '854', 'val'), ('BJ', 'BEN', '204', 'val'), ('BO', 'BOL', '68', 'val'),
    ('CO', 'COL', '170', 'val'), ('DR', 'DOM', '214', 'val'), ('GA', 'GAB', '266', 'val'),
    ('GN', 'GIN', '324', 'val'), ('GY', 'GUY', '328', 'val'), ('HT', 'HTI', '332', 'val'),
    ('NM', 'NAM', '516', 'val'), ('SL', 'SLE', '694', 'val'), ('TD', 'TCD', '148', 'val'),
    ('TZ', 'TZA', '834', 'val'), ('AM', 'ARM', '51', 'test'), ('AO', 'AGO', '24', 'test'),
    ('BU', 'BDI', '108', 'test'), ('CI', 'CIV', '384', 'test'), ('EG', 'EGY', '818', 'test'),
    ('ET', 'ETH', '231', 'test'), ('KH', 'KHM', '116', 'test'), ('KY', 'KGZ', '417', 'test'),
    ('ML', 'MLI', '466', 'test'), ('NP', 'NPL', '524', 'test'), ('PK', 'PAK', '586', 'test'),
    ('RW', 'RWA', '646', 'test'), ('SZ', 'SWZ', '748', 'test')
) AS t(cname, iso3, m49, official_split);

CREATE TEMP TABLE crosswalk AS
  SELECT *,
    count(*) OVER (PARTITION BY cname) = 1
    AND count(*) OVER (PARTITION BY iso3) = 1
    AND count(*) OVER (PARTITION BY m49) = 1 AS alone
  FROM (SELECT * REPLACE (m49::VARCHAR AS m49) FROM countries);

-- cluster-id-agrees (quarantine, needs own build): cname, survey and year (+-1) must be those that
-- the cluster id states
left(cluster_id, 2) = cname AND left(cluster_id, 10) = survey
  AND abs(TRY_CAST(cluster_id[4:7] AS INT) - year) <= 1;

-- country-known (quarantine, needs own build): cname, iso3, official_split and the country's name
-- must be those of one of the 56 countries
(cname, iso3, official_split) IN (SELECT cname, iso3, official_split FROM listed)
  AND (cname, country) IN (SELECT cname, name FROM countries);

-- crosswalk-right (gate): the packaged country crosswalk must give each country its ISO-3 and M49
-- code, once
cname NOT IN (
  SELECT cname FROM listed WHERE cname NOT IN (
    SELECT cname FROM crosswalk SEMI JOIN listed USING (cname, iso3, m49, official_split)
    WHERE alone
  )
);

-- country-has-series (gate, needs series, own build): a country of the clusters has at least one
-- indicator series
iso3 IN (SELECT iso3 FROM series);

-- year-whole (quarantine): year must be a whole number
TRY_CAST(year AS DOUBLE) % 1 = 0;

-- coordinates-on-earth (quarantine): lat and lon must be degrees, or both unknown; 0, 0 is DHS's
-- mark for no position
(lat IS NULL AND lon IS NULL)
  OR (lat BETWEEN -90 AND 90 AND lon BETWEEN -180 AND 180 AND NOT (lat = 0 AND lon = 0));

-- missing-code (quarantine): no label is -9, -99 or -999: these are codes for missing, not values
NOT list_has_any(
  [TRY_CAST(asset_index AS DOUBLE), TRY_CAST(water_index AS DOUBLE),
    TRY_CAST(sanitation_index AS DOUBLE), TRY_CAST(under5_mort AS DOUBLE),
    TRY_CAST(women_edu AS DOUBLE), TRY_CAST(women_bmi AS DOUBLE)],
  [-9, -99, -999]::DOUBLE[]);

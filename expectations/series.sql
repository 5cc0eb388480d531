-- Rules of series.parquet that span columns, rows or tables (CONTRIBUTING.md).

-- units of the publishers (UNSD, UIS, WHO, IHME, Global Data Lab): lowest, highest, unit
CREATE TEMP TABLE ranges AS FROM (VALUES
    ('sh_sta_stunt', 0, 100, '%'), ('sh_sta_waste', 0, 100, '%'), ('sh_acs_unhc', 0, 100, 'index'),
    ('eg_elc_accs', 0, 100, '%'), ('sp_acs_bsrvh2o', 0, 100, '%'), ('sp_acs_bsrvsan', 0, 100, '%'),
    ('sh_h2o_safe', 0, 100, '%'), ('sh_san_safe', 0, 100, '%'),
    ('sh_sta_wash', 0, 1000, 'deaths per 100,000'), ('se_tot_cplr', 0, 100, '%'),
    ('cr_2_f', 0, 100, '%'), ('ncd_pac', 0, 100, '%'), ('haq', 0, 100, 'index'),
    ('shdi', 0, 1, 'index'), ('edindex', 0, 1, 'index'), ('healthindex', 0, 1, 'index'),
    ('gdl_area_stunting', 0, 100, '%'), ('gdl_area_wasting', 0, 100, '%'),
    ('gdl_area_electr', 0, 100, '%'), ('ed_health_alignment', 0, 1, 'index')
) AS t(series, low, high, unit);

-- series-country-known (quarantine): iso3 must be one of the 56 countries: no aggregate such as
-- World, no other country
iso3 IN (SELECT iso3 FROM countries);

-- region-of-country (quarantine): region is empty or a Global Data Lab code of the same country,
-- without strata
region = '' OR (regexp_full_match(region, '[a-z]{3}r\d{3}') AND left(region, 3) = lower(iso3) AND
    stratum = 'all');

-- year-whole (quarantine): year must be a whole number
TRY_CAST(year AS DOUBLE) % 1 = 0;

-- value-in-range (quarantine): the value must lie in the range of its series' unit
NOT EXISTS (FROM ranges g WHERE g.series = r.series AND r.value NOT BETWEEN g.low AND g.high);

-- unit-scale (warn): a series in percent exceeds 1 somewhere; else it may be shares instead of
-- percent
series NOT IN (SELECT series FROM rows
  JOIN ranges USING (series) WHERE starts_with(unit, '%')
  GROUP BY series HAVING max(value) <= 1 AND count(*) >= 10);

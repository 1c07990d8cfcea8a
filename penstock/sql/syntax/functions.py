"""Names of Spark's built-in functions: deterministic row functions, aggregates, generators and others.

A function that is in no list is unknown: a user registered it, or a later version of Spark has it. A test
compares the lists with Spark's function catalog.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AGGREGATES", "GENERATORS", "NEVER_BOOLEAN", "OTHERS", "OWN_FUNCTION", "ROW_FUNCTIONS"]

ROW_FUNCTIONS: Final = frozenset(
    """
    abs acos acosh add_months aes_decrypt approx_top_k_estimate array array_append array_compact
    array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min
    array_position array_prepend array_remove array_repeat array_size array_union arrays_overlap ascii asin
    asinh atan atan2 atanh base64 bigint bin binary bit_count bit_get bit_length bitmap_bit_position
    bitmap_bucket_number bitmap_count boolean bround btrim cardinality cast cbrt ceil ceiling char
    char_length character_length chr coalesce collate collation concat concat_ws contains conv
    convert_timezone cos cosh cot crc32 csc date date_add date_diff date_format date_from_unix_date
    date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear
    decimal decode degrees double e element_at elt encode endswith equal_null exp expm1 extract factorial
    find_in_set flatten float floor format_number format_string from_base32 from_csv from_json from_unixtime
    from_utc_timestamp from_xml get get_json_object getbit greatest hash hex hll_sketch_estimate hll_union
    hmac hour hypot if ifnull initcap instr int is_valid_utf8 is_valid_variant is_variant_null isnan
    isnotnull isnull jaro_winkler_similarity json_array_length json_object_keys kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint
    kll_sketch_get_quantile_double kll_sketch_get_quantile_float kll_sketch_get_rank_bigint
    kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double
    kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float last_day lcase least left len length levenshtein ln locate log log10 log1p
    log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_time make_timestamp
    make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key
    map_entries map_from_arrays map_from_entries map_keys map_values mask md5 minute mod month monthname
    months_between named_struct nanvl negative next_day nullif nullifzero nvl nvl2 octet_length overlay
    parse_json parse_url pi pmod position positive pow power printf quarter quote radians regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace
    reverse right rint round rpad rtrim schema_of_json schema_of_variant schema_of_xml sec second sentences
    sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint
    sort_array soundex space split split_part sqrt startswith str_to_map string substr substring
    substring_index tan tanh theta_difference theta_intersection theta_sketch_estimate theta_union time
    time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds
    tinyint to_base32 to_binary to_char to_date to_json to_number to_time to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_utc_timestamp to_varchar to_variant_object to_xml translate trim trunc try_add
    try_aes_decrypt try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz
    try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract try_to_binary
    try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
    try_variant_array_append try_variant_get try_variant_insert try_variant_set tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
    tuple_intersection_theta_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
    tuple_sketch_theta_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_nanos
    unix_seconds upper url_decode url_encode validate_utf8 variant_array_append variant_delete variant_get
    variant_insert variant_set variant_strip_nulls vector_avg vector_cosine_similarity vector_inner_product
    vector_l2_distance vector_norm vector_normalize vector_sum weekday weekofyear width_bucket xpath
    xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string
    xxhash64 year zeroifnull
    """.split()  # noqa: SIM905
)
"""Row functions that always return the same value for the same arguments.

Functions that name fields after their arguments, like ``struct``, are excluded: their result changes if a
column is replaced by its definition. Functions that fail on purpose, like ``raise_error``, are also
excluded.
"""

NEVER_BOOLEAN: Final = frozenset(
    """
    abs array ascii base64 bigint binary ceil ceiling char char_length concat concat_ws date date_add
    date_diff date_format date_part date_sub date_trunc datediff day dayofmonth dayofweek dayofyear decimal
    double exp float floor format_number format_string from_unixtime hash hex hour initcap instr int lcase
    left length levenshtein ln locate log log10 lower lpad ltrim map md5 minute month months_between
    octet_length pmod pow power quarter regexp_count regexp_extract regexp_replace repeat replace right round
    rpad rtrim second sha1 sha2 sign signum size smallint space split sqrt string substr substring
    substring_index timestamp tinyint to_date to_json to_timestamp translate trim trunc ucase unix_micros
    unix_millis unix_seconds upper weekday weekofyear xxhash64 year
    """.split()  # noqa: SIM905
)
"""Functions that never return a boolean, whatever their arguments are, and so cannot be conditions."""

AGGREGATES: Final = frozenset(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg
    bitmap_or_agg bool_and bool_or collect_list collect_set collect_union corr count count_if
    count_min_sketch covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric
    hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value listagg max
    max_by mean measure median min min_by mode percentile percentile_approx percentile_cont percentile_disc
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
    schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum
    theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double
    tuple_union_agg_integer var_pop var_samp variance
    """.split()  # noqa: SIM905
)
"""Aggregate functions."""

OWN_FUNCTION: Final = "own"
"""Penstock's function that calls a user-defined aggregate: ``own('module:Class', x)``."""

GENERATORS: Final = frozenset(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack variant_explode
    variant_explode_outer
    """.split()  # noqa: SIM905
)
"""Functions that generate several rows from one row."""

OTHERS: Final = frozenset(
    """
    aes_encrypt aggregate and array_sort arrays_zip assert_true between case collations counter_diff cume_dist
    curdate current_catalog current_database current_date current_path current_schema current_time
    current_timestamp current_timezone current_user dense_rank div exists filter forall from_avro
    from_protobuf ilike in input_file_block_length input_file_block_start input_file_name java_method lag
    lead like localtime localtimestamp map_filter map_zip_with monotonically_increasing_id not now
    nth_value ntile or percent_rank python_worker_logs raise_error rand randn random randstr range rank
    reduce reflect regexp rlike row_number schema_of_avro schema_of_csv session_user session_window
    shuffle spark_partition_id sql_keywords st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid
    struct time_bucket timediff timestampadd timestampdiff to_avro to_csv to_protobuf to_unix_timestamp
    transform transform_keys transform_values try_reflect uniform unix_timestamp user uuid version when
    window window_time zip_with
    """.split()  # noqa: SIM905
)
"""All other functions, such as those whose value changes from call to call."""

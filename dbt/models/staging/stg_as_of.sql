-- bardo_pipeline/derivation/incremental/record_queries.py, last_event_time. Events of the whole home (keys,
-- configurations), texts and tool calls carry the clock of an operator or a caller instead of event time.
select greatest(
    (select max({{ utc('observed_at') }}) from {{ source('home', 'log_cycles') }}),
    (
        select max({{ utc('observed_at') }}) from {{ source('home', 'log_life') }}
        where golem_id <> '*' and kind not in ('TextStored', 'ToolCalled')
    )
) as as_of

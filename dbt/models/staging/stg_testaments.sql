-- A retracted row stays in the file beside the row that retracts it; both are excluded.
select
    told.golem_id, told.divergence_ppm / 1e6 as divergence, told.low_divergence,
    told.novel_count, len(told.invalidated) as invalidated_count, told.forgotten_count, told.gap_count,
    told.question_ratio_ppm / 1e6 as question_ratio
from {{ source('home', 'derived_testaments') }} as told
where told.because is null and not exists (
    from {{ source('home', 'derived_testaments') }} as back
    where back.because is not null and back.golem_id = told.golem_id and back.turn is not distinct from told.turn
)

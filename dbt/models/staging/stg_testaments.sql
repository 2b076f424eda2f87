-- A retracted row stays in the file beside the row that retracts it; both are excluded.
select
    testament.golem_id, testament.divergence_ppm / 1e6 as divergence, testament.low_divergence,
    testament.novel_count, len(testament.invalidated) as invalidated_count, testament.forgotten_count, testament.gap_count,
    testament.question_ratio_ppm / 1e6 as question_ratio
from {{ source('home', 'derived_testaments') }} as testament
where testament.because is null and not exists (
    from {{ source('home', 'derived_testaments') }} as back
    where back.because is not null and back.golem_id = testament.golem_id and back.turn is not distinct from testament.turn
)

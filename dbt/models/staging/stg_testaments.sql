select
    golem_id, divergence_ppm / 1e6 as divergence, low_divergence,
    novel_count, len(invalidated) as invalidated_count, forgotten_count, gap_count,
    question_ratio_ppm / 1e6 as question_ratio
from {{ valid_rows(source('home', 'derived_testaments'), ['golem_id']) }}

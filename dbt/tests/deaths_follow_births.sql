select golem_id, born_at, died_at from {{ ref('dim_golem') }} where died_at < born_at

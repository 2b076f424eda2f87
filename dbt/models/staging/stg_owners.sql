select golem_id, owner_id from {{ ref('stg_births') }}

select golem_id, max(cycle) as cycle from {{ source('home', 'derived_cycles') }} group by golem_id

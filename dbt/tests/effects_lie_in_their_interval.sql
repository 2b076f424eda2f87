select golem_id, entry_id, effect_low, effect_mean, effect_high from {{ ref('fct_knowledge') }}
where not effect_mean between effect_low and effect_high

select
    owner_id, entry_id, archetype, kind, category, text, provenance, origin_golem_id, generation,
    is_anti_knowledge, is_bloodstain, sign,
    deposited_ppm as confidence_deposited_ppm, confidence_ppm as confidence_anchor_ppm, anchor_at,
    channel, channels, len(golem_ids) as golem_count, golem_ids,
    validator_count, refuter_count, equipped_lineage_count, is_battle_tested, is_default,
    first_at, last_at, as_of
from {{ ref('stg_library') }} cross join {{ ref('stg_as_of') }}
order by owner_id, entry_id

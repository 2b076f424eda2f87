select golem_id, entry_id, confidence_anchor_ppm, confidence_ppm from {{ ref('fct_knowledge') }}
where confidence_ppm > confidence_anchor_ppm

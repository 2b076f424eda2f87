"""The proposal job: requests proposals for living golems from a language model, and phrases testaments if
configured."""

import os

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.curation.request_proposals import propose_all
from bardo_pipeline.derivation.death.testament_phrasing import phrase_all_testaments
from bardo_pipeline.gateway.model_settings import MODEL, ModelSettings


@dg.op(out=dg.Out(dg.Nothing))
def request_model_proposals(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Request proposals for every living golem up to the daily cap and record the answers. No-op without a model."""
    settings = ModelSettings.of(os.environ)
    if settings is None:
        context.add_output_metadata({"asked": 0, "why": f"{MODEL} is not set"})
        return
    requests = propose_all(home.stores, settings, clock=home.now)
    fresh = [request.event.asked for request in requests if request.event is not None and not request.known]
    answers = [answer for answer in fresh if answer is not None]
    context.add_output_metadata(
        {
            "asked": len(answers),
            "operations": sum(len(answer.operations) for answer in answers),
            "cost_micros": sum(answer.cost_micros for answer in answers),
            "what_came": markdown_table([{"outcome": answer.outcome, "detail": answer.detail} for answer in answers]),
        }
    )


@dg.op(ins={"proposed": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def phrase_testaments(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Phrase every unphrased testament if gateway.phrases_testaments is on, and record the answers."""
    settings, stores = ModelSettings.of(os.environ), home.stores
    if settings is None or not stores.policy.gateway.phrases_testaments:
        why = f"{MODEL} is not set" if settings is None else "gateway.phrases_testaments is off"
        context.add_output_metadata({"asked": 0, "why": why})
        return
    requests = phrase_all_testaments(stores, settings, clock=home.now)
    answers = [request.phrased for request in requests if not request.known]
    wordings = [wording for answer in answers for wording in answer.wordings]
    refused = [wording for wording in wordings if wording.fault is not None]
    context.add_output_metadata(
        {
            "asked": len(answers),
            "phrased": len(wordings) - len(refused),
            "refused": markdown_table([{"wording": wording.wording, "because": wording.fault} for wording in refused]),
            "cost_micros": sum(answer.cost_micros for answer in answers),
            "what_came": markdown_table([{"outcome": answer.outcome, "detail": answer.detail} for answer in answers]),
        }
    )


@dg.job(
    description="Request operations on the grimoire of every living golem from the language model in BARDO_MODEL, "
    "within the policy's caps, and record every answer, failures included. The curator judges the proposals when the "
    "golem's next cycle closes. `bardo propose --all` does the same. With gateway.phrases_testaments the job also "
    "phrases testaments, as `bardo golem phrase --all` does.",
)
def proposal_job() -> None:
    """Request proposals, then phrase testaments."""
    phrase_testaments(request_model_proposals())

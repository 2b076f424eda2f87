"""The proposal job: a language model is asked what living golems' closed cycles teach, where one is configured.

Where the configuration wants that, it also phrases the testaments of the dead.
"""

import os

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.curation.request_proposals import propose_all
from bardo_pipeline.derivation.death.testament_phrasing import phrase_all_testaments
from bardo_pipeline.gateway.model_settings import MODEL, ModelSettings


@dg.op(out=dg.Out(dg.Nothing))
def ask_the_model(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Ask about every living golem until the day's cap is reached, and record what came; without a model, nothing."""
    settings = ModelSettings.of(os.environ)
    if settings is None:
        context.add_output_metadata({"asked": 0, "why": f"{MODEL} is not set"})
        return
    askings = propose_all(home.stores, settings, clock=home.now)
    fresh = [asking.event.asked for asking in askings if asking.event is not None and not asking.known]
    said = [one for one in fresh if one is not None]
    context.add_output_metadata(
        {
            "asked": len(said),
            "operations": sum(len(one.operations) for one in said),
            "cost_micros": sum(one.cost_micros for one in said),
            "what_came": markdown_table([{"outcome": one.outcome, "detail": one.detail} for one in said]),
        }
    )


@dg.op(ins={"proposed": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
def phrase_the_testaments(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Have every testament phrased that is not, where the configuration wants that, and record what came."""
    settings, stores = ModelSettings.of(os.environ), home.stores
    if settings is None or not stores.policy.gateway.phrases_testaments:
        why = f"{MODEL} is not set" if settings is None else "gateway.phrases_testaments is off"
        context.add_output_metadata({"asked": 0, "why": why})
        return
    said = [asking.phrased for asking in phrase_all_testaments(stores, settings, clock=home.now) if not asking.known]
    wordings = [wording for one in said for wording in one.wordings]
    refused = [one for one in wordings if one.fault is not None]
    context.add_output_metadata(
        {
            "asked": len(said),
            "phrased": len(wordings) - len(refused),
            "refused": markdown_table([{"wording": one.wording, "because": one.fault} for one in refused]),
            "cost_micros": sum(one.cost_micros for one in said),
            "what_came": markdown_table([{"outcome": one.outcome, "detail": one.detail} for one in said]),
        }
    )


@dg.job(
    executor_def=dg.in_process_executor,
    description="Ask the language model that BARDO_MODEL names for operations on the grimoire of every living golem, "
    "within the policy's caps, and record what it answers, failures included. The curator judges its proposals when "
    "the golem's next cycle closes. `bardo propose --all` does the same. With gateway.phrases_testaments it phrases "
    "testaments, too, as `bardo golem phrase --all` does.",
)
def proposal_job() -> None:
    """Ask about the living, then about what the dead left to say."""
    phrase_the_testaments(ask_the_model())

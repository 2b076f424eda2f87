"""Views of a grimoire: links, crossings and surprise."""

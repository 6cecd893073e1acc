"""Texts of scripts for users, distinguished from the names of things."""

from documentation.script_messages import of_script

SOURCE = r"""// "a text in a comment"
/* `another text in there` */
const pattern = /a "text in a pattern/g, half = all / 2 + "the rest of it".length / 2;
export const view = (pod) => h("section", { class: "note very bad", title: `the name of ${pod}` },
  h("h2", null, "What it waits for"), fact("Memory in all given", pod.mib),
  h("p", { class: "quiet" }, "No pod waits here."),
  pod.node && h("a", { href: `api/node?name=${pod.node}` }, `On ${pod.node ? `node ${pod.node}, which has gone` : "no node at all"} now`));
element.setAttribute("aria-label", "The heat map of all");
event.target.closest?.("input, select, textarea");
throw new Error('it isn\'t there any more');
announce("The map shows that"); lost("the connection was lost", { again: "}" });
draw("Nothing is called so");
"""


def test_a_message_is_a_text_that_is_no_name() -> None:
    assert [(one.where, one.template) for one in of_script("x.js", SOURCE)] == [
        ("x.js:3", "the rest of it"),
        ("x.js:6", "No pod waits here."),
        ("x.js:7", "node …, which has gone"),
        ("x.js:7", "no node at all"),
        ("x.js:10", "it isn't there any more"),
        ("x.js:11", "the connection was lost"),
        ("x.js:12", "Nothing is called so"),
    ]

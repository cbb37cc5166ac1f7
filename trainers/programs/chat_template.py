"""Checks a chat template as transformers compiles it."""


def check_chat_template(template: str) -> None:
    """Check the syntax of a chat template. It needs jinja2, which replicas may lack.

    Raises:
        ValueError: It is wrong. The message has the line.
    """
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block that marks answers, as transformers adds it to Jinja."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("parse"), [], [], body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    try:
        environment.compile(template)
    except TemplateSyntaxError as error:
        raise ValueError(f"chat_template is no template of Jinja: line {error.lineno}: {error.message}") from None
    except (SyntaxError, RecursionError) as error:  # The Python code of the template, such as a `break` of no loop.
        # The line of a SyntaxError is that of the Python code.
        raise ValueError(f"chat_template is no template of Jinja: {getattr(error, 'msg', error)}") from None

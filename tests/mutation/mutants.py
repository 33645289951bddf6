"""The branch conditions of a source, found with tree-sitter (PyPI: tree-sitter, tree-sitter-cpp),
and the source with all of its mutants in it, one of which is chosen when it runs (mutant.h).

A condition of an if, a while, a do, a for or a ?: is made true and false. An operand of && is
made true, one of || false (the other way round is the whole condition's)."""

import dataclasses

import tree_sitter
import tree_sitter_cpp


@dataclasses.dataclass
class Mutant:
    number: int      # as FIRN_MUTANT has it
    file: str
    line: int
    function: str
    condition: str
    value: bool

    def key(self):
        return (self.file, self.function, self.condition, str(self.value).lower())

    def words(self):
        return (f"`{self.file}` `{self.function}` `{self.condition}` -> "
                f"{str(self.value).lower()}")


def one_line(text):
    return " ".join(text.split())


class Source:
    def __init__(self, path, name, first):
        self.bytes, self.name = path.read_bytes(), name
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))
        self.mutants, self.insertions, self.next = [], [], first
        self.visit(parser.parse(self.bytes).root_node, "")

    def text(self, node):
        return self.bytes[node.start_byte:node.end_byte].decode()

    def visit(self, node, function):
        if node.type == "function_definition":
            name = node.child_by_field_name("declarator")
            while name is not None and name.child_by_field_name("declarator") is not None:
                name = name.child_by_field_name("declarator")
            function = self.text(name).split("::")[-1] if name is not None else function
        if node.type in ("static_assert_declaration", "preproc_def", "preproc_function_def"):
            return
        condition = self.condition_of(node)
        if condition is not None and not self.text(condition).startswith("FIRN_CANARY"):
            self.wrap(condition, function, (True, False))
        if node.type == "binary_expression" and function:
            operator = self.text(node.child_by_field_name("operator"))
            if operator in ("&&", "||"):
                for side in ("left", "right"):
                    operand = node.child_by_field_name(side)
                    inner = operand.child_by_field_name("operator")
                    chain = operand.type == "binary_expression" and self.text(inner) == operator
                    if not chain and "FIRN_CANARY" not in self.text(operand):
                        self.wrap(operand, function, (operator == "&&",))
        for child in node.children:
            self.visit(child, function)

    def condition_of(self, node):
        if node.type in ("if_statement", "while_statement"):
            if any(child.type == "constexpr" for child in node.children):
                return None
            clause = node.child_by_field_name("condition")
            value = clause.child_by_field_name("value") if clause is not None else None
            if value is not None and value.type == "declaration" and node.type != "if_statement":
                return None
            return value
        if node.type in ("for_statement", "conditional_expression", "do_statement"):
            return node.child_by_field_name("condition")
        return None

    def wrap(self, node, function, values):
        number = self.next
        self.next += 2
        for value in values:
            self.mutants.append(Mutant(number + (0 if value else 1), self.name,
                                       node.start_point[0] + 1, function,
                                       one_line(self.text(node)), value))
        if node.type == "declaration":  # if (T x = f()): if (T x = f(); x)
            name = node.child_by_field_name("declarator")
            while name.type in ("pointer_declarator", "init_declarator", "reference_declarator"):
                name = name.child_by_field_name("declarator") or name.named_children[-1]
            self.insertions.append((node.end_byte, 0,
                                    f"; FIRN_BRANCH({number}, {self.text(name)})"))
            return
        begin, end = node.start_byte, node.end_byte
        if node.type == "parenthesized_expression":  # (a do's: its parentheses are the statement's)
            begin, end = begin + 1, end - 1
        self.insertions.append((begin, end, f"FIRN_BRANCH({number}, "))
        self.insertions.append((end, 0, ")"))

    def mutated(self):
        """What ends at a place comes before what begins there; the wider begins first."""
        out, at = [], 0
        for place, end, words in sorted(self.insertions,
                                        key=lambda each: (each[0], each[1] > 0, -each[1])):
            out += [self.bytes[at:place].decode(), words]
            at = place
        return "".join([*out, self.bytes[at:].decode()])

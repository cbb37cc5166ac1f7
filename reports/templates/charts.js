"use strict";
// Draws the figures of the page.
{
  const scheme = matchMedia("(prefers-color-scheme: dark)");

  // Axes and grids take their colors from CSS variables when they are painted; texts inside a figure do not.
  const paint = (view) => {
    const color = getComputedStyle(document.body).color;
    for (const model of view.model.references()) {
      if (model.tags?.includes("text")) {
        model.text_color = { value: color };
      }
    }
    view.request_paint();
  };

  const draw = async (element) => {
    const data = element.querySelector("script");
    const [view] = await Bokeh.embed.embed_item(JSON.parse(data.textContent), element);
    paint(view);
    scheme.addEventListener("change", () => paint(view));
    // Bokeh makes the layer that takes events focusable, and gives it no name.
    const layer = view.canvas_view.events_el;
    layer.setAttribute("role", "img");
    layer.setAttribute("aria-label", element.dataset.figure);
    const reset = () => view.model.reset.emit();
    layer.addEventListener("dblclick", reset);
    layer.addEventListener("keydown", (event) => event.key === "Escape" && reset());
  };

  Bokeh.logger.set_level("warn");
  const figures = [...document.querySelectorAll("[data-figure]")];
  Promise.all(figures.map(draw)).then(() => document.body.classList.add("drawn"));
}

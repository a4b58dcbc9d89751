// Write a hint above each table that is wider than the page, and let the keyboard scroll it.
function hint() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    let line = box.previousElementSibling
    if (!line?.classList.contains("scroll-hint")) {
      line = Object.assign(document.createElement("p"), { className: "scroll-hint", textContent: "Swipe sideways for all columns →" })
      box.before(line)
    }
    const wide = box.scrollWidth > box.clientWidth + 1
    line.classList.toggle("shown", wide)
    wide ? box.setAttribute("tabindex", "0") : box.removeAttribute("tabindex")
  }
}
addEventListener("load", hint)
addEventListener("resize", hint)

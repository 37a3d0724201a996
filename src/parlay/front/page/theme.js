// Before anything is drawn: light, dark, or what the system says. Not a module, so that it comes first.
(() => {
  const kept = localStorage.getItem("parlay-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
